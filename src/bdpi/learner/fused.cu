// A whole epoch of perceptrons with one hidden layer: one kernel trains all critics of all runs, a second one lets the
// actor of each run follow its critics, one after the other.
//
// A network is trained by a group of programs (a cluster of thread blocks). Each of them owns 32 hidden units: their
// weights and Adam's moments stay in its shared memory for the whole epoch, and all that the programs of a group tell
// each other is what their units add to the outputs.
//
// Within a program, a thread computes 8 units for a few rows of the batch, in its registers. A warp has 32 such threads
// with the same units, so that a gradient, which is a sum over rows, is a sum over the lanes of two warps. What concerns
// the outputs of a row (targets, softmax, their gradient) is done by one thread per row.
//
// With one-hot observations the rows are not the samples of the batch but the states: the network is evaluated once for
// each state, and the samples only count.
//
// Sizes are macros: I inputs, H hidden units, A actions, N samples per batch, GROUP programs per network; ITERATIONS and
// FIT as in Hyperparameters; OCCUPANCY programs at a time on a multiprocessor; flags: ONE_HOT, RELU, MASKED, IMITATION, CROSS_ENTROPY. Further, in comments: R runs in
// memory, S of them take part in an epoch (`members`), C critics, K of them trained, M places in a replay memory, P
// parameters. `rates` are, for each run, the learning rates of critics and actor, alpha, the parameter of the rule.

#ifndef EMULATED
#if GROUP > 1
#define KERNEL extern "C" __global__ __cluster_dims__(GROUP, 1, 1) __launch_bounds__(256, OCCUPANCY) void
#else
#define KERNEL extern "C" __global__ __launch_bounds__(256, OCCUPANCY) void
#endif
#define DEVICE __device__ __forceinline__

using Integer = long long;
using Byte = unsigned char;

DEVICE int thread() { return threadIdx.x; }
DEVICE int program() { return blockIdx.x; }
DEVICE void meet() { __syncthreads(); }
DEVICE void meet_group() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE float exchange(float value, int lanes) { return __shfl_xor_sync(~0u, value, lanes); }
DEVICE float *of_program(float *mine, int rank) {
    float *other;
    asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(mine), "r"(rank));
    return other;
}
DEVICE float quick_exp(float x) { return __expf(x); }
DEVICE float quick_quotient(float a, float b) { return __fdividef(a, b); }
template <typename T> DEVICE T &shared() {
    extern __shared__ float4 memory[];
    return *reinterpret_cast<T *>(memory);
}
#endif

constexpr int LANES = 32, WARPS = 8, THREADS = LANES * WARPS;
constexpr int U = 32, UNIT_GROUPS = 4, V = U / UNIT_GROUPS;  // units of a program, of a thread
constexpr int ROW_GROUPS = THREADS / UNIT_GROUPS, HALVES = ROW_GROUPS / LANES;
constexpr int ROWS = ONE_HOT ? I : N;
constexpr int R = (ROWS + ROW_GROUPS - 1) / ROW_GROUPS;  // rows of a thread, as far as hidden units are concerned
constexpr int MINE = (ROWS + THREADS - 1) / THREADS;     // rows of a thread, as far as outputs are concerned
constexpr int SAMPLES = (N + THREADS - 1) / THREADS;     // of a thread
constexpr int P = H * I + H + A * H + A;
// A program's parameters: a row of 32 for each input, one for the biases, one for each output; the outputs' biases.
constexpr int OUTPUT_BIASES = U * (I + 1 + A), PARAMETERS = OUTPUT_BIASES + A, ALIGNED = (PARAMETERS + 3) / 4 * 4;
constexpr int KNOWN = ONE_HOT ? N : 1;  // what only one-hot observations need

struct alignas(16) Network {
    float values[ALIGNED], first_moment[ALIGNED], second_moment[ALIGNED];
};

template <int NETWORKS> struct alignas(16) Shared {
    Network networks[NETWORKS];
    float gradients[HALVES][ALIGNED];
    float parts[UNIT_GROUPS][A][ROWS];
    float sums[GROUP > 1 ? 2 : 1][GROUP][A][GROUP > 1 ? ROWS : 1];
    float output_gradients[A][ROWS];
    float q[NETWORKS][A][ONE_HOT ? ROWS : 1];
    float wanted[A][KNOWN];
    int states[KNOWN], next_states[KNOWN];
    float warp_sums[WARPS];
    float step_sizes[FIT], scales[FIT];
};

DEVICE int lane() { return thread() % LANES; }
DEVICE int first_unit() { return thread() / LANES % UNIT_GROUPS * V; }
DEVICE int half() { return thread() / LANES / UNIT_GROUPS; }
DEVICE int hidden_row(int r) { return half() * LANES + lane() + r * ROW_GROUPS; }
DEVICE int output_row(int k) { return thread() + k * THREADS; }

// Where the parameter of a program is among those of its network; -1: it is padding.
DEVICE int place(int parameter, int part) {
    if (parameter >= OUTPUT_BIASES) return H * I + H + A * H + parameter - OUTPUT_BIASES;
    const int row = parameter / U, unit = part * U + parameter % U;
    if (unit >= H) return -1;
    if (row < I) return unit * I + row;
    return row == I ? H * I + unit : H * I + H + (row - I - 1) * H + unit;
}

DEVICE void load(Network &network, int part, const float *values, const float *first, const float *second) {
    for (int i = thread(); i < PARAMETERS; i += THREADS) {
        const int from = place(i, part);
        network.values[i] = from < 0 ? 0.0f : values[from];
        network.first_moment[i] = from < 0 ? 0.0f : first[from];
        network.second_moment[i] = from < 0 ? 0.0f : second[from];
    }
}

// Programs of a group write the same values where they share an address.
DEVICE void store(const Network &network, int part, float *values, float *first, float *second) {
    for (int i = thread(); i < PARAMETERS; i += THREADS) {
        const int to = place(i, part);
        if (to < 0) continue;
        values[to] = network.values[i];
        first[to] = network.first_moment[i];
        second[to] = network.second_moment[i];
    }
}

struct Inputs {
    float values[R][ONE_HOT ? 1 : I];

    // Of the samples of a batch, which are rows of `observations`.
    DEVICE void read(const float *observations, const Integer *batch, Integer memory) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int row = hidden_row(r);
            const float *from = row < ROWS ? observations + (memory + batch[row]) * I : observations;
#pragma unroll
            for (int i = 0; i < (ONE_HOT ? 0 : I); i++) values[r][i] = row < ROWS ? from[i] : 0.0f;
        }
    }
};

DEVICE void read_weights(float (&weights)[V], const float *from) {
#pragma unroll
    for (int v = 0; v < V; v++) weights[v] = from[v];
}

DEVICE float activation(float z) {
    if (RELU) return fmaxf(z, 0.0f);
    const float e = quick_exp(-2.0f * fabsf(z));  // never overflows, and no branch: units of a warp go the same way
    return copysignf(quick_quotient(1.0f - e, 1.0f + e), z);
}

using Hidden = float[R][V];
using Outputs = float[MINE][A];

DEVICE void compute_hidden(const Network &network, const Inputs &x, Hidden &h) {
    const float *weights = network.values + first_unit();
#pragma unroll
    for (int r = 0; r < R; r++) read_weights(h[r], weights + I * U);
    if (ONE_HOT) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int row = hidden_row(r);
#pragma unroll
            for (int v = 0; v < V; v++) h[r][v] += row < ROWS ? weights[row * U + v] : 0.0f;
        }
    } else {
#pragma unroll
        for (int i = 0; i < I; i++) {
            float w[V];
            read_weights(w, weights + i * U);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int v = 0; v < V; v++) h[r][v] += x.values[r][ONE_HOT ? 0 : i] * w[v];
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int v = 0; v < V; v++) h[r][v] = activation(h[r][v]);
}

// The outputs of the whole network, for the rows of this thread. Everybody has read `parts` when the next meeting ends.
template <typename S>
DEVICE void compute_outputs(S &s, const Network &network, const Hidden &h, int part, int &meeting, Outputs &y) {
#pragma unroll
    for (int a = 0; a < A; a++) {
        float w[V];
        read_weights(w, network.values + (I + 1 + a) * U + first_unit());
#pragma unroll
        for (int r = 0; r < R; r++) {
            float sum = 0.0f;
#pragma unroll
            for (int v = 0; v < V; v++) sum += h[r][v] * w[v];
            if (hidden_row(r) < ROWS) s.parts[first_unit() / V][a][hidden_row(r)] = sum;
        }
    }
    meet();
#pragma unroll
    for (int k = 0; k < MINE; k++) {
        const int row = output_row(k);
#pragma unroll
        for (int a = 0; a < A; a++) {
            float sum = 0.0f;
            if (row < ROWS) {
#pragma unroll
                for (int g = 0; g < UNIT_GROUPS; g++) sum += s.parts[g][a][row];
#pragma unroll
                for (int other = 0; other < (GROUP > 1 ? GROUP : 0); other++)
                    *of_program(&s.sums[meeting % 2][part][a][row], other) = sum;
            }
            y[k][a] = sum + network.values[OUTPUT_BIASES + a];
        }
    }
    if (GROUP > 1) {
        // Who is slow may still read the sums of this meeting during the next one, not during the one after that.
        meet_group();
#pragma unroll
        for (int k = 0; k < MINE; k++) {
            const int row = output_row(k);
#pragma unroll
            for (int a = 0; a < A; a++) {
                float sum = 0.0f;
#pragma unroll
                for (int other = 0; other < GROUP; other++) sum += row < ROWS ? s.sums[meeting % 2][other][a][row] : 0.0f;
                y[k][a] = sum + network.values[OUTPUT_BIASES + a];
            }
        }
        meeting++;
    }
}

// Sums over the lanes of a warp: each lane gets that of the value of its own number.
template <int WIDTH = LANES / 2> DEVICE float sum_over_lanes(float (&values)[LANES]) {
    if constexpr (WIDTH > 0) {
        const bool upper = lane() & WIDTH;
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            const float given = upper ? values[j] : values[j + WIDTH];
            const float kept = upper ? values[j + WIDTH] : values[j];
            values[j] = kept + exchange(given, WIDTH);
        }
        return sum_over_lanes<WIDTH / 2>(values);
    }
    return values[0];
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

// Step number `step` of a fit, on the whole batch. `gradient` turns the outputs of a row of this thread into their gradient.
template <typename S, typename Gradient>
DEVICE void fit(S &s, Network &network, const Inputs &x, int part, int &meeting, int step, Gradient gradient) {
    Hidden h;
    compute_hidden(network, x, h);
    Outputs y;
    compute_outputs(s, network, h, part, meeting, y);
#pragma unroll
    for (int k = 0; k < MINE; k++) {
        float d[A];
        gradient(k, y[k], d);
#pragma unroll
        for (int a = 0; a < A; a++)
            if (output_row(k) < ROWS) s.output_gradients[a][output_row(k)] = d[a];
    }
    meet();

    float d[R][A];
    Hidden dz;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int v = 0; v < V; v++) dz[r][v] = 0.0f;
#pragma unroll
    for (int a = 0; a < A; a++) {
        float w[V];
        read_weights(w, network.values + (I + 1 + a) * U + first_unit());
#pragma unroll
        for (int r = 0; r < R; r++) {
            d[r][a] = hidden_row(r) < ROWS ? s.output_gradients[a][hidden_row(r)] : 0.0f;
#pragma unroll
            for (int v = 0; v < V; v++) dz[r][v] += d[r][a] * w[v];
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int v = 0; v < V; v++) dz[r][v] *= RELU ? float(h[r][v] > 0.0f) : 1.0f - h[r][v] * h[r][v];

    // 32 gradients at a time; of one-hot inputs, each belongs to one row.
    constexpr int FIRST = ONE_HOT ? I : 0, COUNT = V * (I + 1 + A - FIRST);
#pragma unroll
    for (int start = 0; start < COUNT + A; start += LANES) {
        float values[LANES];
#pragma unroll
        for (int q = 0; q < LANES; q++) {
            const int index = start + q, row = FIRST + index / V, v = index % V;
            float sum = 0.0f;
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (index >= COUNT + A) continue;
                if (index >= COUNT) sum += d[r][index - COUNT < A ? index - COUNT : 0];
                else if (row < I) sum += x.values[r][ONE_HOT ? 0 : row] * dz[r][v];
                else if (row == I) sum += dz[r][v];
                else sum += d[r][row - I - 1 < A ? row - I - 1 : 0] * h[r][v];
            }
            values[q] = sum;
        }
        const float sum = sum_over_lanes(values);
        const int index = start + lane();
        if (index < COUNT) s.gradients[half()][(FIRST + index / V) * U + first_unit() + index % V] = sum;
        else if (index < COUNT + A && first_unit() == 0) s.gradients[half()][OUTPUT_BIASES + index - COUNT] = sum;
    }
    if (ONE_HOT) {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int v = 0; v < V; v++)
                if (hidden_row(r) < ROWS) s.gradients[0][hidden_row(r) * U + first_unit() + v] = dz[r][v];
    }
    meet();

    const float step_size = s.step_sizes[step], scale = s.scales[step];
    for (int i = thread(); i < PARAMETERS; i += THREADS) {
        const float g = s.gradients[0][i] + (ONE_HOT && i < I * U ? 0.0f : s.gradients[1][i]);
        const float m = network.first_moment[i] + (g - network.first_moment[i]) * 0.1f;
        const float v = network.second_moment[i] * 0.999f + g * g * 0.001f;
        network.first_moment[i] = m;
        network.second_moment[i] = v;
        network.values[i] -= quick_quotient(step_size * m, sqrtf(v) * scale + 1e-8f);
    }
    meet();
}

// What the fits of this thread's rows aim at: the sums of the targets of the samples of a row, and how many those are.
struct Aims {
    float counts[MINE];
    Outputs sums;

    // Targets of this thread's samples are what rows aim at, unless several samples may share a row.
    template <typename S> DEVICE void set(S &s, const float (&wanted)[SAMPLES][A]) {
        if (!ONE_HOT) {
#pragma unroll
            for (int k = 0; k < MINE; k++) {
                counts[k] = 1.0f;
#pragma unroll
                for (int a = 0; a < A; a++) sums[k][a] = wanted[ONE_HOT ? 0 : k][a];
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < SAMPLES; k++)
#pragma unroll
            for (int a = 0; a < A; a++)
                if (thread() + k * THREADS < N) s.wanted[a][ONE_HOT ? thread() + k * THREADS : 0] = wanted[k][a];
        meet();
#pragma unroll
        for (int k = 0; k < MINE; k++) {
            counts[k] = 0.0f;
#pragma unroll
            for (int a = 0; a < A; a++) sums[k][a] = 0.0f;
            for (int n = 0; n < KNOWN; n++)
                if (s.states[n] == output_row(k)) {
                    counts[k] += 1.0f;
#pragma unroll
                    for (int a = 0; a < A; a++) sums[k][a] += s.wanted[a][n];
                }
        }
        meet();
    }
};

DEVICE int argmax(const float (&values)[A], const Byte *mask) {
    int best = -1;
    float largest = 0.0f;
#pragma unroll
    for (int a = 0; a < A; a++)
        if ((!MASKED || mask[a]) && (best < 0 || values[a] > largest)) {
            best = a;
            largest = values[a];
        }
    return best;
}

template <typename S> DEVICE void read_states(S &s, int (&states)[KNOWN], const Integer *from, const Integer *batch, Integer memory) {
    for (int n = thread(); n < N; n += THREADS) states[ONE_HOT ? n : 0] = int(from[memory + batch[n]]);
}

#if ONE_HOT
using Observation = Integer;
#else
using Observation = float;
#endif

// One group of programs: all training iterations of one critic of one run.
KERNEL train_critics(
    float *parameters, float *first_moment, float *second_moment, Integer *steps, Integer *active,  // (R, C, 2, P) or less
    const Observation *observations, const Integer *actions, const float *rewards, const float *discounts,  // (R, M, ...)
    const Observation *next_observations, const Byte *next_masks,
    const Integer *members, const Integer *batches, const Integer *critics, const double *rates,  // (S,) (S, K, N) (S, K) (S, 4)
    float *targets, float *losses, float *means,  // out: (S, K, N, A), (S, K), (S, K)
    int M, int C, int K) {
    auto &s = shared<Shared<2>>();
    const int number = program() / GROUP, part = program() % GROUP, slot = number / K;
    const Integer run = members[slot], critic = run * C + critics[number], memory = run * M;
    const Integer *batch = batches + Integer(number) * N;
    const int first = int(active[critic]);
    const double learning_rate = rates[slot * 4];
    const float alpha = float(rates[slot * 4 + 2]);
    for (int e = 0; e < 2; e++) {
        const Integer at = (critic * 2 + e) * P;
        load(s.networks[e], part, parameters + at, first_moment + at, second_moment + at);
    }
    Inputs x;
#if ONE_HOT
    read_states(s, s.states, observations, batch, memory);
    read_states(s, s.next_states, next_observations, batch, memory);
#else
    x.read(observations, batch, memory);
#endif
    meet();
    if (GROUP > 1) meet_group();  // nobody writes into the memory of a program that has not begun
    Integer counts[2] = {steps[critic * 2], steps[critic * 2 + 1]};
    int meeting = 0;
    float loss = 0.0f, total = 0.0f;

    for (int iteration = 0; iteration < ITERATIONS; iteration++) {
        const int mine = (first + iteration) % 2;
        Network &network = s.networks[mine], &other = s.networks[1 - mine];
        float q_a[SAMPLES][A], q_b[SAMPLES][A], q[SAMPLES][A], wanted[SAMPLES][A];
        Hidden h;
#if ONE_HOT
        for (int e = 0; e < 2; e++) {
            Outputs y;
            compute_hidden(s.networks[e], x, h);
            compute_outputs(s, s.networks[e], h, part, meeting, y);
            for (int k = 0; k < MINE; k++)
                for (int a = 0; a < A; a++)
                    if (output_row(k) < ROWS) s.q[e][a][output_row(k)] = y[k][a];
            meet();
        }
#pragma unroll
        for (int k = 0; k < SAMPLES; k++) {
            const int n = thread() + k * THREADS;
            if (n >= N) continue;
#pragma unroll
            for (int a = 0; a < A; a++) {
                q_a[k][a] = s.q[mine][a][s.next_states[n]];
                q_b[k][a] = s.q[1 - mine][a][s.next_states[n]];
                q[k][a] = s.q[mine][a][s.states[n]];
            }
        }
#else
        {
            Inputs next_x;
            next_x.read(next_observations, batch, memory);
            compute_hidden(network, next_x, h);
            compute_outputs(s, network, h, part, meeting, q_a);
            meet();
            compute_hidden(other, next_x, h);
            compute_outputs(s, other, h, part, meeting, q_b);
            meet();
        }
        compute_hidden(network, x, h);
        compute_outputs(s, network, h, part, meeting, q);
        meet();
#endif
        loss = total = 0.0f;
#pragma unroll
        for (int k = 0; k < SAMPLES; k++) {
            const int n = thread() + k * THREADS;
            if (n >= N) continue;
            const Integer at = memory + batch[n];
            const int best = argmax(q_a[k], next_masks + at * A), action = int(actions[at]);
            float value = 0.0f, before = 0.0f;
#pragma unroll
            for (int a = 0; a < A; a++) {
                if (a == best) value = fminf(q_a[k][a], q_b[k][a]);
                if (a == action) before = q[k][a];
            }
            const float change = alpha * (rewards[at] + discounts[at] * value - before);
#pragma unroll
            for (int a = 0; a < A; a++) {
                wanted[k][a] = q[k][a] + (a == action ? change : 0.0f);
                total += q[k][a];
                if (iteration == ITERATIONS - 1 && part == 0) targets[(Integer(number) * N + n) * A + a] = wanted[k][a];
            }
            loss += change * change;
        }
        Aims aims;
        aims.set(s, wanted);
        prepare_steps(s, counts[mine], learning_rate);
        counts[mine] += FIT;
        for (int step = 0; step < FIT; step++)
            fit(s, network, x, part, meeting, step, [&](int k, const float(&y)[A], float(&d)[A]) {
#pragma unroll
                for (int a = 0; a < A; a++) d[a] = (aims.counts[k] * y[a] - aims.sums[k][a]) * (2.0f / (N * A));
            });
    }
    loss = sum_over_threads(s, loss);
    total = sum_over_threads(s, total);
    for (int e = 0; e < 2; e++) {
        const Integer at = (critic * 2 + e) * P;
        store(s.networks[e], part, parameters + at, first_moment + at, second_moment + at);
    }
    if (thread() == 0 && part == 0) {
        for (int e = 0; e < 2; e++) steps[critic * 2 + e] = counts[e];
        active[critic] = (first + ITERATIONS) % 2;
        losses[number] = loss / (N * A);
        means[number] = total / (N * A);
    }
}

DEVICE void softmax(const float (&scores)[A], const Byte *mask, float (&p)[A]) {
    float largest = -3e38f, sum = 0.0f;
#pragma unroll
    for (int a = 0; a < A; a++)
        if (!mask || mask[a]) largest = fmaxf(largest, scores[a]);
#pragma unroll
    for (int a = 0; a < A; a++) {
        p[a] = !mask || mask[a] ? quick_exp(scores[a] - largest) : 0.0f;
        sum += p[a];
    }
#pragma unroll
    for (int a = 0; a < A; a++) p[a] = quick_quotient(p[a], sum);
}

// One group of programs: the actor of one run follows its critics, one after the other.
KERNEL train_actor(
    float *parameters, float *first_moment, float *second_moment, Integer *steps,  // (R, P), (R,)
    const Observation *observations, const Byte *masks, const Integer *members, const Integer *batches,  // as above
    const double *rates, const float *q_values, float *losses,  // (S, K, N, A), out (S, K)
    int M, int K) {
    auto &s = shared<Shared<1>>();
    const int slot = program() / GROUP, part = program() % GROUP;
    const Integer run = members[slot], memory = run * M;
    const double learning_rate = rates[slot * 4 + 1];
    const float parameter = float(rates[slot * 4 + 3]);
    Network &network = s.networks[0];
    load(network, part, parameters + run * P, first_moment + run * P, second_moment + run * P);
    const Integer count = steps[run];
    meet();
    if (GROUP > 1) meet_group();
    int meeting = 0;
    float loss = 0.0f;

    for (int critic = 0; critic < K; critic++) {
        const int number = slot * K + critic;
        const Integer *batch = batches + Integer(number) * N;
        Inputs x;
#if ONE_HOT
        read_states(s, s.states, observations, batch, memory);
#else
        x.read(observations, batch, memory);
#endif
        Hidden h;
        Outputs scores;
        compute_hidden(network, x, h);
        compute_outputs(s, network, h, part, meeting, scores);
#if ONE_HOT
        for (int k = 0; k < MINE; k++)
            for (int a = 0; a < A; a++)
                if (output_row(k) < ROWS) s.q[0][a][output_row(k)] = scores[k][a];
#endif
        meet();
        float wanted[SAMPLES][A];
        loss = 0.0f;
#pragma unroll
        for (int k = 0; k < SAMPLES; k++) {
            const int n = thread() + k * THREADS;
            if (n >= N) continue;
            float score[A], policy[A], q[A];
#pragma unroll
            for (int a = 0; a < A; a++) {
#if ONE_HOT
                score[a] = s.q[0][a][s.states[n]];
#else
                score[a] = scores[k][a];
#endif
                q[a] = q_values[(Integer(number) * N + n) * A + a];
            }
            const Byte *mask = MASKED ? masks + (memory + batch[n]) * A : nullptr;
            softmax(score, nullptr, policy);
            const int best = argmax(q, mask);
            if (IMITATION && parameter > 0.0f) {
#pragma unroll
                for (int a = 0; a < A; a++) q[a] /= parameter;
                softmax(q, mask, wanted[k]);
            } else {
                const float keep = IMITATION ? 0.0f : 1.0f - parameter;
#pragma unroll
                for (int a = 0; a < A; a++) wanted[k][a] = keep * policy[a] + (a == best ? 1.0f - keep : 0.0f);
            }
#pragma unroll
            for (int a = 0; a < A; a++) {
                const float error = policy[a] - wanted[k][a];
                loss += CROSS_ENTROPY ? -wanted[k][a] * logf(fmaxf(policy[a], 1e-30f)) / N : error * error / (N * A);
            }
        }
        loss = sum_over_threads(s, loss);
        if (thread() == 0 && part == 0) losses[number] = loss;
        Aims aims;
        aims.set(s, wanted);
        prepare_steps(s, count + Integer(critic) * FIT, learning_rate);
        for (int step = 0; step < FIT; step++)
            fit(s, network, x, part, meeting, step, [&](int k, const float(&y)[A], float(&d)[A]) {
                float policy[A], sum = 0.0f;
                softmax(y, nullptr, policy);
                if (CROSS_ENTROPY) {
#pragma unroll
                    for (int a = 0; a < A; a++) sum += aims.sums[k][a];
#pragma unroll
                    for (int a = 0; a < A; a++) d[a] = (policy[a] * sum - aims.sums[k][a]) * (1.0f / N);
                } else {
#pragma unroll
                    for (int a = 0; a < A; a++) {
                        d[a] = (aims.counts[k] * policy[a] - aims.sums[k][a]) * (2.0f / (N * A));
                        sum += policy[a] * d[a];
                    }
#pragma unroll
                    for (int a = 0; a < A; a++) d[a] = policy[a] * (d[a] - sum);
                }
            });
    }
    store(network, part, parameters + run * P, first_moment + run * P, second_moment + run * P);
    if (thread() == 0 && part == 0) steps[run] = count + Integer(K) * FIT;
}

#ifndef EMULATED
// How much shared memory a program needs.
extern "C" __device__ const int train_critics_shared = sizeof(Shared<2>), train_actor_shared = sizeof(Shared<1>);
#endif
