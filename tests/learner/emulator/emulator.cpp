// Runs the kernels of fused.cu on the CPU, to test them where there is no GPU: a thread of a kernel is a fiber, and the
// fibers of a group of programs take turns until all of them have ended. A fiber begins in a context of its own; from
// then on, _setjmp and _longjmp change from one to another without a system call, and stacks are kept for the next one.
#include <csetjmp>
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
    std::vector<char> stack = std::vector<char>(STACK);
    ucontext_t context;
    jmp_buf place;
    bool has_begun, has_ended;
    const Barrier *waits_at;
    int since;  // the barrier's generation when it came there
};

std::vector<Fiber> fibers;
std::vector<std::vector<char>> memories;
std::vector<std::array<Barrier, 16>> of_programs;
std::vector<Barrier> of_warps;
Barrier of_group;
std::vector<std::array<float, 6>> given;
ucontext_t first_of_scheduler;
jmp_buf scheduler;
std::function<void()> body;
int current, members_of_group, first_program;

void leave() {
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}

void wait(Barrier &barrier, int members) {
    const int generation = barrier.generation;
    if (++barrier.arrived == members) {
        barrier.arrived = 0;
        barrier.generation++;
    }
    if (barrier.generation != generation) return;
    fibers[current].waits_at = &barrier;
    fibers[current].since = generation;
    leave();
}

void enter() {
    body();
    fibers[current].has_ended = true;
    leave();
}

void go_on(Fiber &fiber) {
    fiber.waits_at = nullptr;
    if (_setjmp(scheduler)) return;
    if (fiber.has_begun) _longjmp(fiber.place, 1);
    fiber.has_begun = true;
    swapcontext(&first_of_scheduler, &fiber.context);
}

void run_group(int programs) {
    const int n = members_of_group = programs * PROGRAM;
    if (int(fibers.size()) < n) fibers.resize(n);
    memories.assign(programs, std::vector<char>(SHARED, char(0xff)));  // NaN, until somebody writes
    of_programs.assign(programs, {});
    of_warps.assign(n / WARP, {});
    of_group = {};
    given.assign(n, {});
    for (int i = 0; i < n; i++) {
        Fiber &fiber = fibers[i];
        fiber.has_begun = fiber.has_ended = false;
        fiber.waits_at = nullptr;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK;
        makecontext(&fiber.context, enter, 0);
    }
    for (bool is_running = true; is_running;) {
        is_running = false;
        for (current = 0; current < n; current++) {
            Fiber &fiber = fibers[current];
            if (fiber.has_ended) continue;
            is_running = true;
            if (!fiber.waits_at || fiber.waits_at->generation != fiber.since) go_on(fiber);
        }
    }
}

int thread() { return current % PROGRAM; }
int program() { return first_program + current / PROGRAM; }
void meet_some(int barrier, int threads) { wait(of_programs[current / PROGRAM][barrier], threads); }
void meet() { meet_some(0, PROGRAM); }
void meet_warp() { wait(of_warps[current / WARP], WARP); }
void meet_group() { wait(of_group, members_of_group); }
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
