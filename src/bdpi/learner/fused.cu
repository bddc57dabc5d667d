// A whole epoch of perceptrons with one hidden layer: one kernel trains all critics of all runs, a second one lets the
// actor of each run follow its critics, one after the other. A third one puts new transitions into replay memories.
//
// A program (a block of threads) has the weights, Adam's moments and the gradients of its hidden units in its shared
// memory. How it computes with them is in one of two other files, which say what Inputs, Shared, Aims, `evaluate` and
// `fit` are: fused_split.cuh splits a network over several programs, so that one run takes little time; fused_whole.cuh
// has a program train a whole network, so that many runs do.
//
// With one-hot observations the rows are not the samples of the batch but the states: the network is evaluated once for
// each state, and the samples only count. What concerns the outputs of a row (targets, softmax) is done by one thread
// per row.
//
// Sizes are macros: I inputs, H hidden units, A actions, N samples per batch; GROUP programs per network, each with
// UNITS hidden units and WARPS warps, OCCUPANCY of them at a time on a multiprocessor; ITERATIONS and FIT as in
// Hyperparameters; CRITIC_RULE and ACTOR_RULE, functions of rules.hpp or, where they come from outside the package, of
// outside.hpp, which is empty otherwise; flags: WHOLE, ONE_HOT, RELU, MASKED, CROSS_ENTROPY, REPEATS. Further, in comments: R runs in
// memory, S of them take part in an epoch (`members`), C critics, K of them trained, M places in a replay memory, P
// parameters. `rates` are, for each run, the learning rates of critics and actor, and the parameters of their rules.
// `scales` are what Scales.packed says: networks see (x - shift) factor, and learn (Q - shift) factor.

#ifndef EMULATED
#if GROUP > 1
#define KERNEL extern "C" __global__ __cluster_dims__(GROUP, 1, 1) __launch_bounds__(32 * WARPS, OCCUPANCY) void
#else
#define KERNEL extern "C" __global__ __launch_bounds__(32 * WARPS, OCCUPANCY) void
#endif
#define DEVICE __device__ __forceinline__

using Integer = long long;

DEVICE int thread() { return threadIdx.x; }
DEVICE int program() { return blockIdx.x; }
DEVICE void meet() { __syncthreads(); }
DEVICE void meet_warp() { __syncwarp(); }
DEVICE void meet_some(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
DEVICE void meet_group() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE float exchange(float value, int lanes) { return __shfl_xor_sync(~0u, value, lanes); }
DEVICE float *of_program(float *mine, int rank) {
    float *other;
    asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(mine), "r"(rank));
    return other;
}
DEVICE float minus_infinity() { return __uint_as_float(0xff800000u); }
DEVICE float quick_exp(float x) { return __expf(x); }
DEVICE float quick_quotient(float a, float b) { return __fdividef(a, b); }
DEVICE float quick_power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float quick_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float quick_root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The bits of a number that tensor cores use: it is cut, not rounded.
DEVICE float leading_bits(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
// c += a b, which are 16x8, 16x8 and 8x8. A warp's lanes hold them as PTX says for m16n8k8.
DEVICE void multiply(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
template <typename T> DEVICE T &shared() {
    extern __shared__ float4 memory[];
    return *reinterpret_cast<T *>(memory);
}
#endif

#include "rules.hpp"
#include "outside.hpp"

constexpr int LANES = 32, THREADS = LANES * WARPS;
constexpr int ROWS = ONE_HOT ? I : N;
constexpr int MINE = (ROWS + THREADS - 1) / THREADS;  // rows of a thread, as far as outputs are concerned
constexpr int SAMPLES = (N + THREADS - 1) / THREADS;  // of a thread
constexpr int U = UNITS;
constexpr int P = H * I + H + A * H + A;
// A program's parameters: a row of units for each input, one for the biases, one for each output; the outputs' biases.
constexpr int OUTPUT_BIASES = U * (I + 1 + A), PARAMETERS = OUTPUT_BIASES + A, ALIGNED = (PARAMETERS + 3) / 4 * 4;

struct alignas(16) Network {
    float values[ALIGNED], first_moment[ALIGNED], second_moment[ALIGNED];
};

using Outputs = float[MINE][A];

// What the outputs of a row aim at: the targets of its samples, as the first of them and the sum of what all have more
// than it. Where all want what is there already, the gradient then is 0; of a rounding error, Adam would make a step.
struct Aim {
    float count, first[A], more[A];

    DEVICE float missed_by(float output, int a) const { return count * (output - first[a]) - more[a]; }
    DEVICE float sum(int a) const { return count * first[a] + more[a]; }
};

DEVICE int lane() { return thread() % LANES; }
DEVICE int output_row(int k) { return thread() + k * THREADS; }

// Where the parameter of a program is among those of its network; -1: it is padding.
DEVICE int place(int parameter, int part) {
    if (parameter >= OUTPUT_BIASES) return H * I + H + A * H + parameter - OUTPUT_BIASES;
    const int row = parameter / U, unit = part * U + parameter % U;
    if (unit >= H) return -1;
    if (row < I) return unit * I + row;
    return row == I ? H * I + unit : H * I + H + (row - I - 1) * H + unit;
}

DEVICE void load(float (&array)[ALIGNED], int part, const float *from) {
    for (int i = thread(); i < PARAMETERS; i += THREADS) array[i] = place(i, part) < 0 ? 0.0f : from[place(i, part)];
}

DEVICE void load(Network &network, int part, const float *values, const float *first, const float *second) {
    load(network.values, part, values);
    load(network.first_moment, part, first);
    load(network.second_moment, part, second);
}

// Programs of a group write the same values where they share an address. A thread loads what it has stored. `acting` is
// a second place for the values; null: none.
DEVICE void store(const Network &network, int part, float *values, float *first, float *second, float *acting) {
    for (int i = thread(); i < PARAMETERS; i += THREADS) {
        const int to = place(i, part);
        if (to < 0) continue;
        values[to] = network.values[i];
        if (acting) acting[to] = network.values[i];
        first[to] = network.first_moment[i];
        second[to] = network.second_moment[i];
    }
}

template <typename S> DEVICE float sum_over_threads(S &s, float value) {
    for (int width = LANES / 2; width; width /= 2) value += exchange(value, width);
    meet();
    if (lane() == 0) s.warp_sums[thread() / LANES] = value;
    meet();
    float sum = 0.0f;
    for (int w = 0; w < WARPS; w++) sum += s.warp_sums[w];
    return sum;
}

// Adam's constants are PyTorch's: 0.9, 0.999, 1e-8. What its steps need of them, for all steps of a fit; the powers are
// in double precision. Everybody sees them after the next meeting.
template <typename S> DEVICE void prepare_steps(S &s, Integer steps, double learning_rate) {
    for (int step = thread(); step < FIT; step += THREADS) {
        const double count = double(steps + step + 1);
        s.step_sizes[step] = float(learning_rate / (1.0 - pow(0.9, count)));
        s.scales[step] = float(1.0 / sqrt(1.0 - pow(0.999, count)));
    }
}

template <typename Gradient> DEVICE void adam(Network &network, float step_size, float scale, Gradient gradient) {
    for (int i = thread(); i < PARAMETERS; i += THREADS) {
        const float g = gradient(i);
        const float m = network.first_moment[i] + (g - network.first_moment[i]) * 0.1f;
        const float v = network.second_moment[i] * 0.999f + g * g * 0.001f;
        network.first_moment[i] = m;
        network.second_moment[i] = v;
        network.values[i] -= step_size * m * quick_reciprocal(quick_root(v) * scale + 1e-8f);
    }
}

// Values as rules see them: minus infinity for actions that are not allowed, unless none is.
DEVICE void hide(float (&values)[A], const bool *mask) {
    if (!MASKED) return;
    bool any = false;
#pragma unroll
    for (int a = 0; a < A; a++) any |= mask[a];
#pragma unroll
    for (int a = 0; a < A; a++) values[a] = !any || mask[a] ? values[a] : minus_infinity();
}

DEVICE void softmax(const float (&scores)[A], float (&p)[A]) {
    float largest = -3e38f, sum = 0.0f;
#pragma unroll
    for (int a = 0; a < A; a++) largest = fmaxf(largest, scores[a]);
#pragma unroll
    for (int a = 0; a < A; a++) {
        p[a] = quick_exp(scores[a] - largest);
        sum += p[a];
    }
#pragma unroll
    for (int a = 0; a < A; a++) p[a] = quick_quotient(p[a], sum);
}

#if WHOLE
#include "fused_whole.cuh"
#else
#include "fused_split.cuh"
#endif

#if ONE_HOT
using Observation = Integer;
#else
using Observation = float;
#endif

#if defined(EMULATED) || defined(ONLY_remember)
// A thread: one new transition.
KERNEL remember(
    Observation *observations, Integer *actions, float *rewards, float *discounts, Observation *next_observations,
    bool *masks, bool *next_masks,  // (R, M, ...)
    const Observation *new_observations, const Integer *new_actions, const float *new_rewards,  // (n, ...)
    const float *new_discounts, const Observation *new_next_observations, const bool *new_masks,
    const bool *new_next_masks, const Integer *places, int n) {  // (n,): of R * M
    constexpr int WIDTH = ONE_HOT ? 1 : I, MASKS = MASKED ? A : 0;
    const int from = program() * THREADS + thread();
    if (from >= n) return;
    const Integer to = places[from];
    for (int i = 0; i < WIDTH; i++) {
        observations[to * WIDTH + i] = new_observations[from * WIDTH + i];
        next_observations[to * WIDTH + i] = new_next_observations[from * WIDTH + i];
    }
    actions[to] = new_actions[from];
    rewards[to] = new_rewards[from];
    discounts[to] = new_discounts[from];
    for (int a = 0; a < MASKS; a++) {
        masks[to * A + a] = new_masks[from * A + a];
        next_masks[to * A + a] = new_next_masks[from * A + a];
    }
}
#endif

#if defined(EMULATED) || defined(ONLY_train_critics)
// One group of programs: all training iterations of one critic of one run, on each of its batches, if REPEATS.
KERNEL train_critics(
    float *parameters, float *first_moment, float *second_moment, Integer *steps, Integer *active,  // (R, C, 2, P) or less
    const Observation *observations, const Integer *actions, const float *rewards, const float *discounts,  // (R, M, ...)
    const Observation *next_observations, const bool *next_masks,
    const int *members, const int *batches, const int *critics, const double *rates,  // (S,) (S, K, N) (S, K) (S, 4)
    const float *all_scales,  // (S, 2 I + 2)
    float *targets, float *metrics,  // out: (S, K, N, A), (S, K, 3): losses, those of the actor, mean Q-values
    float *acting, Integer *acting_active,  // out: copies of `parameters` and `active` on the host, or null
    int M, int C, int K) {
    auto &s = shared<Shared>();
    const int turn = program() / GROUP, part = program() % GROUP, slot = turn / K;
    for (int earlier = slot * K; REPEATS && earlier < turn; earlier++)
        if (critics[earlier] == critics[turn]) return;  // that program has all batches of this critic
    const Integer run = members[slot], critic = run * C + critics[turn], memory = run * M;
    int first = int(active[critic]);
    const double learning_rate = rates[slot * 4];
    const float parameter = float(rates[slot * 4 + 2]);
    const float *scales = all_scales + slot * (2 * I + 2);
    const float return_shift = scales[2 * I], return_factor = scales[2 * I + 1];
    if (GROUP > 1) meet_group();  // nothing is written into the memory of a program that has not begun
    Integer counts[2] = {steps[critic * 2], steps[critic * 2 + 1]};
    int meeting = 0;

    for (int number = turn; number < (REPEATS ? (slot + 1) * K : turn + 1); number++) {
        if (critics[number] != critics[turn]) continue;
        const int *batch = batches + Integer(number) * N;
        float loss = 0.0f, total = 0.0f;
        Inputs x;
#if ONE_HOT
        read_states(s.states, observations, batch, memory);
        read_states(s.next_states, next_observations, batch, memory);
#endif

        for (int iteration = 0; iteration < ITERATIONS; iteration++) {
            const int mine = (first + iteration) % 2;
            const Integer at = (critic * 2 + mine) * P, other = (critic * 2 + 1 - mine) * P;
            float q_a[SAMPLES][A], q_b[SAMPLES][A], q[SAMPLES][A], wanted[SAMPLES][A];
            load(s.network.values, part, parameters + other);
#if ONE_HOT
            meet();
            evaluate_states(s, x, part, meeting, s.q[1]);
            load(s.network, part, parameters + at, first_moment + at, second_moment + at);
            meet();
            evaluate_states(s, x, part, meeting, s.q[0]);
            meet();
#pragma unroll
            for (int k = 0; k < SAMPLES; k++) {
                const int n = thread() + k * THREADS;
                if (n >= N) continue;
#pragma unroll
                for (int a = 0; a < A; a++) {
                    q_a[k][a] = s.q[0][a][s.next_states[n]];
                    q_b[k][a] = s.q[1][a][s.next_states[n]];
                    q[k][a] = s.q[0][a][s.states[n]];
                }
            }
#else
            x.read(s, next_observations, batch, memory, scales);
            meet();
            evaluate(s, x, part, meeting, q_b);
            load(s.network, part, parameters + at, first_moment + at, second_moment + at);
            meet();
            evaluate(s, x, part, meeting, q_a);
            x.read(s, observations, batch, memory, scales);
            meet();
            evaluate(s, x, part, meeting, q);
#endif
            loss = total = 0.0f;
#pragma unroll
            for (int k = 0; k < SAMPLES; k++) {
                const int n = thread() + k * THREADS;
                if (n >= N) continue;
                const Integer at = memory + batch[n];
                const int action = int(actions[at]);
                hide(q_a[k], next_masks + at * A);
                hide(q_b[k], next_masks + at * A);
                const float reward = (rewards[at] - (1.0f - discounts[at]) * return_shift) * return_factor;
                const float change = CRITIC_RULE(q[k], q_a[k], q_b[k], A, action, reward, discounts[at], parameter);
#pragma unroll
                for (int a = 0; a < A; a++) {
                    wanted[k][a] = q[k][a] + (a == action ? change : 0.0f);
                    total += q[k][a];
                    if (iteration == ITERATIONS - 1 && part == 0)
                        targets[(Integer(number) * N + n) * A + a] = wanted[k][a];
                }
                loss += change * change;
            }
            prepare_steps(s, counts[mine], learning_rate);
            counts[mine] += FIT;
            Aims aims;
            aims.set(s, wanted);
            for (int step = 0; step < FIT; step++)
                fit(s, x, aims, part, meeting, step, [](const Aim &aim, const float(&y)[A], float(&d)[A]) {
#pragma unroll
                    for (int a = 0; a < A; a++) d[a] = aim.missed_by(y[a], a) * (2.0f / (N * A));
                });
            const bool is_last = iteration >= ITERATIONS - 2;  // of this one of the two networks
            float *copy = acting && is_last ? acting + at : nullptr;
            store(s.network, part, parameters + at, first_moment + at, second_moment + at, copy);
        }
        loss = sum_over_threads(s, loss);
        total = sum_over_threads(s, total);
        if (thread() == 0 && part == 0) {
            for (int e = 0; e < 2; e++) steps[critic * 2 + e] = counts[e];
            active[critic] = (first + ITERATIONS) % 2;
            if (acting) acting_active[critic] = active[critic];
            metrics[number * 3] = loss / (N * A);
            metrics[number * 3 + 2] = total / (N * A);
        }
        first = (first + ITERATIONS) % 2;
    }
}
#endif

#if defined(EMULATED) || defined(ONLY_train_actor)
// One group of programs: the actor of one run follows its critics, one after the other.
KERNEL train_actor(
    float *parameters, float *first_moment, float *second_moment, Integer *steps,  // (R, P), (R,)
    const Observation *observations, const bool *masks, const int *members, const int *batches,  // as above
    const double *rates, const float *all_scales, const float *q_values, float *metrics,
    float *acting,  // out: a copy of `parameters` on the host, or null
    int M, int K) {
    auto &s = shared<Shared>();
    const int slot = program() / GROUP, part = program() % GROUP;
    const Integer run = members[slot], memory = run * M;
    const double learning_rate = rates[slot * 4 + 1];
    const float parameter = float(rates[slot * 4 + 3]);
    const float *scales = all_scales + slot * (2 * I + 2);
    load(s.network, part, parameters + run * P, first_moment + run * P, second_moment + run * P);
    const Integer count = steps[run];
    if (GROUP > 1) meet_group();
    int meeting = 0;
    float loss = 0.0f;

    for (int critic = 0; critic < K; critic++) {
        const int number = slot * K + critic;
        const int *batch = batches + Integer(number) * N;
        Inputs x;
        float scores[SAMPLES][A], wanted[SAMPLES][A];
#if ONE_HOT
        read_states(s.states, observations, batch, memory);
        meet();
        evaluate_states(s, x, part, meeting, s.q[0]);
        meet();
#pragma unroll
        for (int k = 0; k < SAMPLES; k++)
#pragma unroll
            for (int a = 0; a < A; a++)
                if (thread() + k * THREADS < N) scores[k][a] = s.q[0][a][s.states[thread() + k * THREADS]];
#else
        x.read(s, observations, batch, memory, scales);
        meet();
        evaluate(s, x, part, meeting, scores);
#endif
        loss = 0.0f;
#pragma unroll
        for (int k = 0; k < SAMPLES; k++) {
            const int n = thread() + k * THREADS;
            if (n >= N) continue;
            float policy[A], q[A];
#pragma unroll
            for (int a = 0; a < A; a++) q[a] = q_values[(Integer(number) * N + n) * A + a];
            hide(q, masks + (memory + batch[n]) * A);
            softmax(scores[k], policy);
            ACTOR_RULE(policy, q, A, parameter, wanted[k]);
#pragma unroll
            for (int a = 0; a < A; a++) {
                const float error = policy[a] - wanted[k][a];
                loss += CROSS_ENTROPY ? -wanted[k][a] * logf(fmaxf(policy[a], 1e-30f)) / N : error * error / (N * A);
            }
        }
        loss = sum_over_threads(s, loss);
        if (thread() == 0 && part == 0) metrics[number * 3 + 1] = loss;
        prepare_steps(s, count + Integer(critic) * FIT, learning_rate);
        Aims aims;
        aims.set(s, wanted);
        for (int step = 0; step < FIT; step++)
            fit(s, x, aims, part, meeting, step, [](const Aim &aim, const float(&y)[A], float(&d)[A]) {
                float policy[A], sum = 0.0f;
                softmax(y, policy);
                if (CROSS_ENTROPY) {
#pragma unroll
                    for (int a = 0; a < A; a++) sum += aim.sum(a);
#pragma unroll
                    for (int a = 0; a < A; a++) d[a] = (policy[a] * sum - aim.sum(a)) * (1.0f / N);
                } else {
#pragma unroll
                    for (int a = 0; a < A; a++) {
                        d[a] = aim.missed_by(policy[a], a) * (2.0f / (N * A));
                        sum += policy[a] * d[a];
                    }
#pragma unroll
                    for (int a = 0; a < A; a++) d[a] = policy[a] * (d[a] - sum);
                }
            });
    }
    float *copy = acting ? acting + run * P : nullptr;
    store(s.network, part, parameters + run * P, first_moment + run * P, second_moment + run * P, copy);
    if (thread() == 0 && part == 0) steps[run] = count + Integer(K) * FIT;
}
#endif

#ifndef EMULATED
// How much shared memory a program needs.
extern "C" __device__ const int shared_bytes = sizeof(Shared);
#endif
