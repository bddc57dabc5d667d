// For fused.cu: a network is trained by a group of programs (a cluster of thread blocks), each with 32 hidden units.
// All that the programs of a group tell each other is what their units add to the outputs.
//
// Within a program, a thread computes 8 units for a few rows of the batch, in its registers. A warp has 32 such threads
// with the same units, so that a gradient, which is a sum over rows, is a sum over the lanes of two warps.

constexpr int UNIT_GROUPS = 4, V = U / UNIT_GROUPS;  // units of a thread
constexpr int ROW_GROUPS = THREADS / UNIT_GROUPS, HALVES = ROW_GROUPS / LANES;
constexpr int R = (ROWS + ROW_GROUPS - 1) / ROW_GROUPS;  // rows of a thread, as far as hidden units are concerned
constexpr int KNOWN = ONE_HOT ? N : 1;                   // what only one-hot observations need
static_assert(U == 32 && WARPS == 8, "how threads share the work depends on it");

struct alignas(16) Shared {
    Network network;
    float gradients[HALVES][ALIGNED];
    float parts[UNIT_GROUPS][A][ROWS];
    float sums[GROUP > 1 ? 2 : 1][GROUP][A][GROUP > 1 ? ROWS : 1];
    float output_gradients[A][ROWS];
    float q[2][A][ONE_HOT ? ROWS : 1];
    float wanted[A][KNOWN];
    int states[KNOWN], next_states[KNOWN];
    float warp_sums[WARPS];
    float step_sizes[FIT], scales[FIT];
};

DEVICE int first_unit() { return thread() / LANES % UNIT_GROUPS * V; }
DEVICE int half() { return thread() / LANES / UNIT_GROUPS; }
DEVICE int hidden_row(int r) { return half() * LANES + lane() + r * ROW_GROUPS; }

struct Inputs {
    float values[R][ONE_HOT ? 1 : I];

    // Of the samples of a batch, which are rows of `observations`.
    DEVICE void read(Shared &, const float *observations, const int *batch, Integer memory, const float *scales) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int row = hidden_row(r);
            const float *from = row < ROWS ? observations + (memory + batch[row]) * I : observations;
#pragma unroll
            for (int i = 0; i < (ONE_HOT ? 0 : I); i++) values[r][i] = row < ROWS ? (from[i] - scales[i]) * scales[I + i] : 0.0f;
        }
    }
};

DEVICE void read_states(int (&states)[KNOWN], const Integer *from, const int *batch, Integer memory) {
    for (int n = thread(); n < N; n += THREADS) states[ONE_HOT ? n : 0] = int(from[memory + batch[n]]);
}

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
DEVICE void compute_outputs(Shared &s, const Hidden &h, int part, int &meeting, Outputs &y) {
#pragma unroll
    for (int a = 0; a < A; a++) {
        float w[V];
        read_weights(w, s.network.values + (I + 1 + a) * U + first_unit());
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
            y[k][a] = sum + s.network.values[OUTPUT_BIASES + a];
        }
    }
    if (GROUP > 1) {
        // A slow thread may still read the sums of this meeting during the next one, not during the one after that.
        meet_group();
#pragma unroll
        for (int k = 0; k < MINE; k++) {
            const int row = output_row(k);
#pragma unroll
            for (int a = 0; a < A; a++) {
                float sum = 0.0f;
#pragma unroll
                for (int other = 0; other < GROUP; other++)
                    sum += row < ROWS ? s.sums[meeting % 2][other][a][row] : 0.0f;
                y[k][a] = sum + s.network.values[OUTPUT_BIASES + a];
            }
        }
        meeting++;
    }
}

DEVICE void evaluate(Shared &s, const Inputs &x, int part, int &meeting, Outputs &y) {
    Hidden h;
    compute_hidden(s.network, x, h);
    compute_outputs(s, h, part, meeting, y);
    meet();
}

// The same for all states, which everybody sees after the next meeting.
DEVICE void evaluate_states(Shared &s, const Inputs &x, int part, int &meeting, float (&q)[A][ONE_HOT ? ROWS : 1]) {
    Outputs y;
    evaluate(s, x, part, meeting, y);
#pragma unroll
    for (int k = 0; k < MINE; k++)
#pragma unroll
        for (int a = 0; a < A; a++)
            if (output_row(k) < ROWS) q[a][ONE_HOT ? output_row(k) : 0] = y[k][a];
}

// What the fits of this thread's rows aim at.
struct Aims {
    Aim rows[MINE];

    // Targets of this thread's samples are what rows aim at, unless several samples may share a row.
    DEVICE void set(Shared &s, const float (&wanted)[SAMPLES][A]) {
        if (!ONE_HOT) {
#pragma unroll
            for (int k = 0; k < MINE; k++) {
                rows[k].count = 1.0f;
#pragma unroll
                for (int a = 0; a < A; a++) {
                    rows[k].first[a] = wanted[ONE_HOT ? 0 : k][a];
                    rows[k].more[a] = 0.0f;
                }
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
            rows[k].count = 0.0f;
#pragma unroll
            for (int a = 0; a < A; a++) rows[k].first[a] = rows[k].more[a] = 0.0f;
            for (int n = 0; n < KNOWN; n++)
                if (s.states[n] == output_row(k)) {
#pragma unroll
                    for (int a = 0; a < A; a++) {
                        if (rows[k].count == 0.0f) rows[k].first[a] = s.wanted[a][n];
                        rows[k].more[a] += s.wanted[a][n] - rows[k].first[a];
                    }
                    rows[k].count += 1.0f;
                }
        }
        meet();
    }
};

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

// Step number `step` of a fit, on the whole batch. `gradient` turns the outputs of a row into their gradient.
template <typename Gradient>
DEVICE void fit(Shared &s, const Inputs &x, const Aims &aims, int part, int &meeting, int step, Gradient gradient) {
    Hidden h;
    compute_hidden(s.network, x, h);
    Outputs y;
    compute_outputs(s, h, part, meeting, y);
#pragma unroll
    for (int k = 0; k < MINE; k++) {
        float d[A];
        gradient(aims.rows[k], y[k], d);
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
        read_weights(w, s.network.values + (I + 1 + a) * U + first_unit());
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
    adam(s.network, s.step_sizes[step], s.scales[step], [&](int i) {
        return s.gradients[0][i] + (ONE_HOT && i < I * U ? 0.0f : s.gradients[1][i]);
    });
    meet();
}
