// Runs the kernels of fused.cu on the CPU, to test them where there is no GPU: a thread of a kernel is a fiber, and the
// fibers of a group of programs take turns until all of them have ended.
#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define EMULATED
#define KERNEL extern "C" void
#define DEVICE inline
#define alignas(n)  // the emulator's vectors do not promise any

using Integer = int64_t;
using Byte = unsigned char;

namespace {

constexpr int PROGRAM = 256, WARP = 32;
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
std::vector<Barrier> of_programs, of_warps;
Barrier of_group;
std::vector<float> given;
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
    given.assign(n, 0.0f);
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
void meet() { wait(of_programs[current / PROGRAM], PROGRAM); }
void meet_group() { wait(of_group, int(fibers.size())); }
float exchange(float value, int lanes) {
    Barrier &warp = of_warps[current / WARP];
    given[current] = value;
    wait(warp, WARP);
    const float taken = given[current ^ lanes];
    wait(warp, WARP);
    return taken;
}
float *of_program(float *mine, int rank) {
    const ptrdiff_t offset = reinterpret_cast<char *>(mine) - memories[current / PROGRAM].data();
    return reinterpret_cast<float *>(memories[rank].data() + offset);
}
float quick_exp(float x) { return std::exp(x); }
float quick_quotient(float a, float b) { return a / b; }
template <typename T> T &shared() {
    static_assert(sizeof(T) <= SHARED, "too much shared memory");
    return *reinterpret_cast<T *>(memories[current / PROGRAM].data());
}

}  // namespace

#include SIZES  // the macros; they would get in the way of the headers above
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
    else return 1;
    return 0;
}
