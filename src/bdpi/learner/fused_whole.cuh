// For fused.cu: a program trains a whole network, and its matrix products are computed by tensor cores.
//
// A warp has 32 hidden units, for some of the rows of the batch. It computes them in tiles of 16 units and 8 rows, as
// `multiply` leaves them: lane l has the units l / 4 and l / 4 + 8 of rows 2 (l % 4) and 2 (l % 4) + 1. Sums over rows,
// which gradients are, are products again, for which a tile is already where `multiply` wants it, if the 8 rows are
// counted in the order 0 2 4 6 1 3 5 7. Hidden units stay in registers from the outputs to the gradients, which is why
// a warp goes through its rows in chunks. Warps tell each other what their units add to the outputs, and gradients.
//
// Tensor cores only look at the leading bits of a number. So each number is the sum of two, and a product of numbers is
// three products: it is nearly as precise as if computed in float32.

constexpr int TILE = 8, CEIL_TILES = (N + TILE - 1) / TILE;  // rows of a tile
constexpr int UNIT_WARPS = U / 32, ROW_WARPS = WARPS / UNIT_WARPS;
constexpr int OUTPUTS = A > 4 ? 8 : 4, BLOCKS = OUTPUTS / 4;
constexpr int STEPS = (I + 7) / 8;  // of 8 inputs
constexpr int FAIR_TILES = (CEIL_TILES + ROW_WARPS - 1) / ROW_WARPS;
constexpr int MOST_TILES = STEPS + BLOCKS > 2 ? 2 : 4;  // that fit into registers
constexpr int TILES = FAIR_TILES < MOST_TILES ? FAIR_TILES : MOST_TILES, CHUNK = TILES * TILE;  // of a warp at a time
constexpr int CHUNKS = (FAIR_TILES + TILES - 1) / TILES;                      // of a warp
constexpr int ALL_TILES = CHUNKS * ROW_WARPS * TILES;
// Tensor cores take their time, so tiles are computed side by side: all of a chunk, or pairs where registers are few.
constexpr int PAIR = TILES % 2 ? 1 : 2;
static_assert(!ONE_HOT && GROUP == 1 && A <= 8 && U % 32 == 0 && WARPS % UNIT_WARPS == 0, "what this file is for");

struct alignas(16) Four {
    float values[4];

    DEVICE void get(float (&high)[2], float (&low)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            high[i] = values[i];
            low[i] = values[2 + i];
        }
    }
};

struct alignas(16) Shared {
    Network network;
    Four inputs[ALL_TILES][STEPS][LANES], inputs_by_row[ALL_TILES][STEPS][LANES];  // as `multiply` wants them
    alignas(16) float parts[2][ROW_WARPS][UNIT_WARPS][CHUNK][OUTPUTS];
    alignas(16) float output_gradients[WARPS][CHUNK][2 * OUTPUTS + 4];  // leading bits, others; no two lanes in a bank
    alignas(16) float rows[ALL_TILES * TILE][OUTPUTS];                  // outputs, or what they aim at
    float gradients[ROW_WARPS][ALIGNED];
    float warp_sums[WARPS];
    float step_sizes[FIT], scales[FIT];
};

DEVICE int warp() { return thread() / LANES; }
DEVICE int unit_warp() { return warp() % UNIT_WARPS; }
DEVICE int row_warp() { return warp() / UNIT_WARPS; }
DEVICE int major() { return lane() / 4; }
DEVICE int minor() { return lane() % 4; }
DEVICE int first_tile(int chunk) { return (chunk * ROW_WARPS + row_warp()) * TILES; }

// Of the warps with the same rows.
DEVICE void meet_for_rows() {
    if (UNIT_WARPS == 1) meet_warp();
    else meet_some(1 + row_warp(), UNIT_WARPS * LANES);
}

template <int COUNT> DEVICE void split(const float (&x)[COUNT], float (&high)[COUNT], float (&low)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        high[i] = leading_bits(x[i]);
        low[i] = x[i] - high[i];
    }
}

// As `multiply` wants a tile whose products are summed over its rows.
DEVICE void split_by_rows(const float (&x)[4], float (&high)[4], float (&low)[4]) {
    const float by_rows[4] = {x[0], x[2], x[1], x[3]};
    split(by_rows, high, low);
}

DEVICE Four both_parts(float first, float second) {
    const float x[2] = {first, second};
    float high[2], low[2];
    split(x, high, low);
    return {{high[0], high[1], low[0], low[1]}};
}

struct Inputs {
    // Of the samples of a batch, which are rows of `observations`. Everybody sees them after the next meeting.
    DEVICE void read(Shared &s, const float *observations, const int *batch, Integer memory, const float *scales) {
        const auto input = [&](int row, int i) {
            if (row >= N || i >= I) return 0.0f;
            return (observations[(memory + batch[row]) * I + i] - scales[i]) * scales[I + i];
        };
        for (int tile = warp(); tile < ALL_TILES; tile += WARPS)
            for (int step = 0; step < STEPS; step++) {
                const int row = tile * TILE, i = step * 8;
                s.inputs[tile][step][lane()] =
                    both_parts(input(row + major(), i + minor()), input(row + major(), i + minor() + 4));
                s.inputs_by_row[tile][step][lane()] =
                    both_parts(input(row + 2 * minor(), i + major()), input(row + 2 * minor() + 1, i + major()));
            }
    }
};

// Of a warp's units: two tiles of 16, of which a lane has two or, by `multiply`'s rules, parts of more.
struct Weights {
    float first_high[2][STEPS][4], first_low[2][STEPS][4], biases[2][2];
    float second[2][2][OUTPUTS];  // lanes have the outputs in different orders: see sum_over_units
    float back[2][BLOCKS][4];     // leading bits, others

    DEVICE void read(const float (&values)[ALIGNED]) {
        // tanh z = 1 - 2 / (2^y + 1) where y = 2 log2(e) z
        constexpr float FACTOR = RELU ? 1.0f : 2.8853900817779268f;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float *units = values + unit_warp() * 32 + m * 16 + major();
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                float w[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int i = step * 8 + minor() + j / 2 * 4;
                    w[j] = i < I ? units[i * U + j % 2 * 8] * FACTOR : 0.0f;
                }
                split(w, first_high[m][step], first_low[m][step]);
            }
#pragma unroll
            for (int j = 0; j < 2; j++) biases[m][j] = units[I * U + j * 8] * FACTOR;
#pragma unroll
            for (int a = 0; a < OUTPUTS; a++) {
                const int mine = a ^ major() % OUTPUTS;
#pragma unroll
                for (int j = 0; j < 2; j++) second[m][j][a] = mine < A ? units[(I + 1 + mine) * U + j * 8] : 0.0f;
            }
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                const int a = block * 4 + minor();
                float w[2];
#pragma unroll
                for (int j = 0; j < 2; j++) w[j] = a < A ? units[(I + 1 + a) * U + j * 8] : 0.0f;
                const Four both = both_parts(w[0], w[1]);
#pragma unroll
                for (int j = 0; j < 4; j++) back[m][block][j] = both.values[j];
            }
        }
    }
};

DEVICE float activation(float z) {
    return RELU ? fmaxf(z, 0.0f) : fmaf(-2.0f, quick_reciprocal(quick_power_of_2(z) + 1.0f), 1.0f);
}

using Tile = float[2][4];

DEVICE void compute_hidden(const Shared &s, const Weights &w, int tile, Tile (&h)[TILES]) {
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < 4; j++) h[t][m][j] = w.biases[m][j / 2];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        float high[TILES][2], low[TILES][2];
#pragma unroll
        for (int t = 0; t < TILES; t++) s.inputs[tile + t][step][lane()].get(high[t], low[t]);
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) multiply(h[i / 2][i % 2], w.first_high[i % 2][step], low[i / 2]);
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) multiply(h[i / 2][i % 2], w.first_low[i % 2][step], high[i / 2]);
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) multiply(h[i / 2][i % 2], w.first_high[i % 2][step], high[i / 2]);
    }
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < 4; j++) h[t][m][j] = activation(h[t][m][j]);
}

// Sums over the 8 lanes that have the same rows: each of them gets that of one output. In place 0 a lane has the output
// that it will get; what it has in another place, the lane that it gives it to has in place 0, or gives further.
template <int COUNT> DEVICE void sum_over_units(float (&sums)[COUNT][OUTPUTS]) {
#pragma unroll
    for (int width = OUTPUTS / 2; width; width /= 2)
#pragma unroll
        for (int a = 0; a < width; a++)
#pragma unroll
            for (int r = 0; r < COUNT; r++) sums[r][a] += exchange(sums[r][a + width], width * 4);
}

// What the units of this warp add to the outputs of a chunk.
DEVICE void add_outputs(const Weights &w, const Tile (&h)[TILES], float (&parts)[CHUNK][OUTPUTS]) {
    const int output = major() % OUTPUTS, upper = major() / OUTPUTS;
    float added[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; t += PAIR) {
        float sums[2 * PAIR][OUTPUTS];
#pragma unroll
        for (int r = 0; r < 2 * PAIR; r++)
#pragma unroll
            for (int a = 0; a < OUTPUTS; a++) {
                sums[r][a] = 0.0f;
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int j = 0; j < 2; j++) sums[r][a] += h[t + r / 2][m][j * 2 + r % 2] * w.second[m][j][a];
            }
        sum_over_units(sums);
#pragma unroll
        for (int r = 0; r < 2 * PAIR; r++) added[t + r / 2][r % 2] = sums[r][0];
        if (OUTPUTS == 8) continue;
        // Two lanes have parts of the same sums, and each completes that of one row.
#pragma unroll
        for (int p = t; p < t + PAIR; p++)
            added[p][0] = (upper ? added[p][1] : added[p][0]) + exchange(upper ? added[p][0] : added[p][1], 16);
    }
    // Loads would have to wait for earlier stores.
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int row = t * TILE + 2 * minor();
        parts[row + upper][output] = added[t][0];
        if (OUTPUTS == 8) parts[row + 1][output] = added[t][1];
    }
}

// The outputs of the network: a row for each lane.
DEVICE void compute_outputs(Shared &s, int chunk, float (&y)[A]) {
#pragma unroll
    for (int a = 0; a < A; a++) y[a] = s.network.values[OUTPUT_BIASES + a];
#pragma unroll
    for (int u = 0; u < UNIT_WARPS; u++)
#pragma unroll
        for (int a = 0; a < A; a++) y[a] += s.parts[chunk % 2][row_warp()][u][lane() % CHUNK][a];
}

DEVICE void evaluate(Shared &s, const Inputs &, int, int &, Outputs &y) {
    Weights w;
    w.read(s.network.values);
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        Tile h[TILES];
        compute_hidden(s, w, first_tile(chunk), h);
        add_outputs(w, h, s.parts[chunk % 2][row_warp()][unit_warp()]);
        meet_for_rows();
        if (chunk % UNIT_WARPS == unit_warp() && lane() < CHUNK) {
            float outputs[A];
            compute_outputs(s, chunk, outputs);
#pragma unroll
            for (int a = 0; a < A; a++) s.rows[first_tile(chunk) * TILE + lane()][a] = outputs[a];
        }
    }
    meet();
#pragma unroll
    for (int k = 0; k < MINE; k++)
#pragma unroll
        for (int a = 0; a < A; a++) y[k][a] = output_row(k) < ROWS ? s.rows[output_row(k)][a] : 0.0f;
}

// What the fits of rows aim at.
struct Aims {
    DEVICE void set(Shared &s, const float (&wanted)[SAMPLES][A]) {
#pragma unroll
        for (int k = 0; k < SAMPLES; k++)
#pragma unroll
            for (int a = 0; a < A; a++)
                if (output_row(k) < ROWS) s.rows[output_row(k)][a] = wanted[k][a];
        meet();
    }

    static DEVICE Aim of(const Shared &s, int row) {
        Aim aim{1.0f, {}, {}};
#pragma unroll
        for (int a = 0; a < A; a++) aim.first[a] = s.rows[row][a];
        return aim;
    }
};

// Sums over the rows of a warp.
struct Gradients {
    float first[2][STEPS][4] = {}, biases[2][2] = {}, second[2][BLOCKS][4] = {}, output_biases[A] = {};

    // Of the rows of a pair of tiles; `d` are the gradients of their outputs.
    DEVICE void add(const Shared &s, const Weights &w, int tile, const Tile *h, const float (*d)[2 * OUTPUTS + 4]) {
        Tile dz[PAIR] = {};
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            float high[PAIR][2], low[PAIR][2];
#pragma unroll
            for (int p = 0; p < PAIR; p++) {
                const float *of_row = d[p * TILE + major()] + block * 4 + minor();
                high[p][0] = high[p][1] = of_row[0];
                low[p][0] = low[p][1] = of_row[OUTPUTS];
            }
#pragma unroll
            for (int i = 0; i < 2 * PAIR; i++) multiply(dz[i / 2][i % 2], w.back[i % 2][block], low[i / 2]);
#pragma unroll
            for (int i = 0; i < 2 * PAIR; i++) multiply(dz[i / 2][i % 2], w.back[i % 2][block], high[i / 2]);
        }
#pragma unroll
        for (int p = 0; p < PAIR; p++) {
            float h_high[2][4], h_low[2][4], dz_high[2][4], dz_low[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    dz[p][m][j] *= RELU ? float(h[p][m][j] > 0.0f) : 1.0f - h[p][m][j] * h[p][m][j];
                    biases[m][j / 2] += dz[p][m][j];
                }
                split_by_rows(h[p][m], h_high[m], h_low[m]);
                split_by_rows(dz[p][m], dz_high[m], dz_low[m]);
            }
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                float high[2], low[2];
                s.inputs_by_row[tile + p][step][lane()].get(high, low);
#pragma unroll
                for (int m = 0; m < 2; m++) multiply(first[m][step], dz_high[m], low);
#pragma unroll
                for (int m = 0; m < 2; m++) multiply(first[m][step], dz_low[m], high);
#pragma unroll
                for (int m = 0; m < 2; m++) multiply(first[m][step], dz_high[m], high);
            }
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                // Columns are leading and other bits of one output after the other.
                const float *of_row = d[p * TILE + 2 * minor()] + major() % 2 * OUTPUTS + block * 4 + major() / 2;
                const float both[2] = {of_row[0], of_row[2 * OUTPUTS + 4]};
#pragma unroll
                for (int m = 0; m < 2; m++) multiply(second[m][block], h_low[m], both);
#pragma unroll
                for (int m = 0; m < 2; m++) multiply(second[m][block], h_high[m], both);
            }
        }
    }

    DEVICE void write(float (&gradients)[ALIGNED]) {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int unit = unit_warp() * 32 + m * 16 + major() + j / 2 * 8, column = 2 * minor() + j % 2;
#pragma unroll
                for (int step = 0; step < STEPS; step++)
                    if (step * 8 + column < I) gradients[(step * 8 + column) * U + unit] = first[m][step][j];
            }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int unit = unit_warp() * 32 + m * 16 + major() + j * 8;
                float sum = biases[m][j];
                sum += exchange(sum, 1);
                sum += exchange(sum, 2);
                if (minor() == 0) gradients[I * U + unit] = sum;
#pragma unroll
                for (int block = 0; block < BLOCKS; block++) {
                    const int a = block * 4 + minor();
                    const float *both = second[m][block] + 2 * j;
                    if (a < A) gradients[(I + 1 + a) * U + unit] = unit < H ? both[0] + both[1] : 0.0f;
                }
            }
        if (unit_warp() == 0)
#pragma unroll
            for (int a = 0; a < A; a++) {
                float sum = output_biases[a];
#pragma unroll
                for (int width = LANES / 2; width; width /= 2) sum += exchange(sum, width);
                if (lane() == 0) gradients[OUTPUT_BIASES + a] = sum;
            }
    }
};

// Step number `step` of a fit, on the whole batch. `gradient` turns the outputs of a row into their gradient.
template <typename Gradient>
DEVICE void fit(Shared &s, const Inputs &, const Aims &aims, int, int &, int step, Gradient gradient) {
    Weights w;
    w.read(s.network.values);
    Gradients sums;
    auto &d = s.output_gradients[warp()];
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const int tile = first_tile(chunk);
        Tile h[TILES];
        compute_hidden(s, w, tile, h);
        add_outputs(w, h, s.parts[chunk % 2][row_warp()][unit_warp()]);
        // A slow thread may still read the parts of this chunk during the next one, not during the one after that.
        meet_for_rows();
        if (lane() < CHUNK) {
            const int row = tile * TILE + lane();
            float y[A], of_row[A];
            compute_outputs(s, chunk, y);
            gradient(aims.of(s, row), y, of_row);
#pragma unroll
            for (int a = 0; a < OUTPUTS; a++) {
                const float value = a < A && row < N ? of_row[a < A ? a : 0] : 0.0f;
                d[lane()][a] = leading_bits(value);
                d[lane()][OUTPUTS + a] = value - leading_bits(value);
                if (a < A) sums.output_biases[a < A ? a : 0] += value;
            }
        }
        meet_warp();
#pragma unroll
        for (int t = 0; t < TILES; t += PAIR) sums.add(s, w, tile + t, h + t, d + t * TILE);
    }
    sums.write(s.gradients[row_warp()]);
    meet();
    adam(s.network, s.step_sizes[step], s.scales[step], [&](int i) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < ROW_WARPS; r++) sum += s.gradients[r][i];
        return sum;
    });
    meet();
}
