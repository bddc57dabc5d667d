// Runs the kernels of fused.cu on the CPU, to test them where there is no GPU: a thread of a kernel is a fiber, and the
// fibers of a group of programs take turns until all of them have ended.
#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include SIZES  // the macros; they would get in the way of the headers above

#define EMULATED
#define KERNEL extern "C" void
#define DEVICE inline
#define alignas(n)  // the emulator's vectors do not promise any

using Integer = int64_t;

namespace {

constexpr int WARP = 32, PROGRAM = WARPS * WARP;
constexpr size_t STACK = 1 << 16, SHARED = 232448;  // bytes: of a fiber, and what a program may have on an H200

struct Barrier {
    int arrived = 0, generation = 0;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool has_ended = false;
};

std::vector<Fiber> fibers;
std::vector<std::vector<char>> memories;
std::vector<std::array<Barrier, 16>> of_programs;
std::vector<Barrier> of_warps;
Barrier of_group;
std::vector<std::array<float, 6>> given;
ucontext_t scheduler;
std::function<void()> body;
int current, first_program;

void wait(Barrier &barrier, int members) {
    const int generation = barrier.generation;
    if (++barrier.arrived == members) {
        barrier.arrived = 0;
        barrier.generation++;
    }
    while (barrier.generation == generation) swapcontext(&fibers[current].context, &scheduler);
}

void enter() {
    body();
    fibers[current].has_ended = true;
    swapcontext(&fibers[current].context, &scheduler);
}

void run_group(int programs) {
    const int n = programs * PROGRAM;
    fibers = std::vector<Fiber>(n);
    memories.assign(programs, std::vector<char>(SHARED, char(0xff)));  // NaN, until somebody writes
    of_programs.assign(programs, {});
    of_warps.assign(n / WARP, {});
    of_group = {};
    given.assign(n, {});
    for (Fiber &fiber : fibers) {
        fiber.stack.resize(STACK);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK;
        makecontext(&fiber.context, enter, 0);
    }
    for (bool is_running = true; is_running;) {
        is_running = false;
        for (current = 0; current < n; current++)
            if (!fibers[current].has_ended) {
                is_running = true;
                swapcontext(&scheduler, &fibers[current].context);
            }
    }
}

int thread() { return current % PROGRAM; }
int program() { return first_program + current / PROGRAM; }
void meet_some(int barrier, int threads) { wait(of_programs[current / PROGRAM][barrier], threads); }
void meet() { meet_some(0, PROGRAM); }
void meet_warp() { wait(of_warps[current / WARP], WARP); }
void meet_group() { wait(of_group, int(fibers.size())); }
float exchange(float value, int lanes) {
    given[current][0] = value;
    meet_warp();
    const float taken = given[current ^ lanes][0];
    meet_warp();
    return taken;
}
float leading_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof x);
    bits &= 0xffffe000;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
// c += a b. Lane l has rows l / 4 and l / 4 + 8 of `a` and `c`, and column l / 4 of `b`; columns l % 4 and l % 4 + 4 of
// `a`, which are rows of `b`; columns 2 (l % 4) and 2 (l % 4) + 1 of `c`.
void multiply(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
    for (int i = 0; i < 4; i++) given[current][i] = leading_bits(a[i]);
    for (int i = 0; i < 2; i++) given[current][4 + i] = leading_bits(b[i]);
    meet_warp();
    const int first = current / WARP * WARP, lane = current % WARP;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 8; k++) {
            const float left = given[first + lane / 4 * 4 + k % 4][i / 2 + k / 4 * 2];
            c[i] += left * given[first + (lane % 4 * 2 + i % 2) * 4 + k % 4][4 + k / 4];
        }
    meet_warp();
}
float *of_program(float *mine, int rank) {
    const ptrdiff_t offset = reinterpret_cast<char *>(mine) - memories[current / PROGRAM].data();
    return reinterpret_cast<float *>(memories[rank].data() + offset);
}
float minus_infinity() { return -INFINITY; }
float quick_exp(float x) { return std::exp(x); }
float quick_quotient(float a, float b) { return a / b; }
float quick_power_of_2(float x) { return std::exp2(x); }
float quick_reciprocal(float x) { return 1 / x; }
float quick_root(float x) { return std::sqrt(x); }
template <typename T> T &shared() {
    static_assert(sizeof(T) <= SHARED, "too much shared memory");
    return *reinterpret_cast<T *>(memories[current / PROGRAM].data());
}

}  // namespace

#include SOURCE

namespace {

template <typename... Types, size_t... i>
void call(void (*kernel)(Types...), void **arguments, std::index_sequence<i...>) {
    kernel(*static_cast<Types *>(arguments[i])...);
}

template <typename... Types> void launch(void (*kernel)(Types...), int programs, void **arguments) {
    body = [=] { call(kernel, arguments, std::index_sequence_for<Types...>()); };
    for (first_program = 0; first_program < programs; first_program += GROUP) run_group(GROUP);
}

}  // namespace

extern "C" int launch_kernel(const char *name, int programs, void **arguments) {
    if (!std::strcmp(name, "train_critics")) launch(train_critics, programs, arguments);
    else if (!std::strcmp(name, "train_actor")) launch(train_actor, programs, arguments);
    else if (!std::strcmp(name, "remember")) launch(remember, programs, arguments);
    else return 1;
    return 0;
}
