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
static_assert(!ONE_HOT && GROUP == 1 && A <= 8 && U % 32 == 0 && WARPS % UNIT_WARPS == 0, "what this file is for");

struct alignas(16) Four {
    float values[4];
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

DEVICE Four both_parts(float first, float second) {
    const float x[2] = {first, second};
    float high[2], low[2];
    split(x, high, low);
    return {{high[0], high[1], low[0], low[1]}};
}

struct Inputs {
    // Of the samples of a batch, which are rows of `observations`. Everybody sees them after the next meeting.
    DEVICE void read(Shared &s, const float *observations, const Integer *batch, Integer memory) {
        const auto input = [&](int row, int i) {
            return row < N && i < I ? observations[(memory + batch[row]) * I + i] : 0.0f;
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
    float back_high[2][BLOCKS][2], back_low[2][BLOCKS][2];

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
                split(w, back_high[m][block], back_low[m][block]);
            }
        }
    }
};

DEVICE float activation(float z) {
    return RELU ? fmaxf(z, 0.0f) : fmaf(-2.0f, quick_reciprocal(quick_power_of_2(z) + 1.0f), 1.0f);
}

using Tile = float[2][4];

DEVICE void compute_hidden(const Shared &s, const Weights &w, int tile, Tile &h) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < 4; j++) h[m][j] = w.biases[m][j / 2];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const Four x = s.inputs[tile][step][lane()];
        const float high[2] = {x.values[0], x.values[1]}, low[2] = {x.values[2], x.values[3]};
#pragma unroll
        for (int m = 0; m < 2; m++) multiply(h[m], w.first_high[m][step], low);
#pragma unroll
        for (int m = 0; m < 2; m++) multiply(h[m], w.first_low[m][step], high);
#pragma unroll
        for (int m = 0; m < 2; m++) multiply(h[m], w.first_high[m][step], high);
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < 4; j++) h[m][j] = activation(h[m][j]);
}

// Sums over the 8 lanes that have the same rows: each of them gets that of one output. In place 0 a lane has the output
// that it will get; what it has in another place, the lane that it gives it to has in place 0, or gives further.
DEVICE void sum_over_units(float (&sums)[2][OUTPUTS]) {
#pragma unroll
    for (int width = OUTPUTS / 2; width; width /= 2)
#pragma unroll
        for (int a = 0; a < width; a++)
#pragma unroll
            for (int r = 0; r < 2; r++) sums[r][a] += exchange(sums[r][a + width], width * 4);
}

// What the units of this warp add to the outputs of a tile.
DEVICE void add_outputs(const Weights &w, const Tile &h, float (&parts)[CHUNK][OUTPUTS], int first_row) {
    float sums[2][OUTPUTS];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int a = 0; a < OUTPUTS; a++) {
            sums[r][a] = 0.0f;
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int j = 0; j < 2; j++) sums[r][a] += h[m][j * 2 + r] * w.second[m][j][a];
        }
    sum_over_units(sums);
    const int row = first_row + 2 * minor(), output = major() % OUTPUTS;
    if (OUTPUTS == 4) {
        const bool upper = major() >= 4;
        const float sum = (upper ? sums[1][0] : sums[0][0]) + exchange(upper ? sums[0][0] : sums[1][0], 16);
        parts[row + upper][output] = sum;
    } else {
        parts[row][output] = sums[0][0];
        parts[row + 1][output] = sums[1][0];
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
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            Tile h;
            compute_hidden(s, w, first_tile(chunk) + t, h);
            add_outputs(w, h, s.parts[chunk % 2][row_warp()][unit_warp()], t * TILE);
        }
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
        Aim aim{1.0f, {}};
#pragma unroll
        for (int a = 0; a < A; a++) aim.sums[a] = s.rows[row][a];
        return aim;
    }
};

// Sums over the rows of a warp.
struct Gradients {
    float first[2][STEPS][4] = {}, biases[2][2] = {}, second[2][BLOCKS][4] = {}, output_biases[A] = {};

    // `d` are the gradients of the outputs, of the tile's rows.
    DEVICE void add(const Shared &s, const Weights &w, int tile, const Tile &h, const float (*d)[2 * OUTPUTS + 4]) {
        Tile dz = {};
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            const float high = d[major()][block * 4 + minor()], low = d[major()][OUTPUTS + block * 4 + minor()];
#pragma unroll
            for (int m = 0; m < 2; m++) multiply(dz[m], w.back_high[m][block], low);
#pragma unroll
            for (int m = 0; m < 2; m++) multiply(dz[m], w.back_low[m][block], high);
#pragma unroll
            for (int m = 0; m < 2; m++) multiply(dz[m], w.back_high[m][block], high);
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                dz[m][j] *= RELU ? float(h[m][j] > 0.0f) : 1.0f - h[m][j] * h[m][j];
                biases[m][j / 2] += dz[m][j];
            }
            const float by_rows[4] = {dz[m][0], dz[m][2], dz[m][1], dz[m][3]};
            float high[4], low[4];
            split(by_rows, high, low);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const Four x = s.inputs_by_row[tile][step][lane()];
                const float x_high[2] = {x.values[0], x.values[1]}, x_low[2] = {x.values[2], x.values[3]};
                multiply(first[m][step], high, x_low);
                multiply(first[m][step], low, x_high);
                multiply(first[m][step], high, x_high);
            }
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float by_rows[4] = {h[m][0], h[m][2], h[m][1], h[m][3]};
            float high[4], low[4];
            split(by_rows, high, low);
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                const float both[2] = {d[2 * minor()][block * 8 + major()], d[2 * minor() + 1][block * 8 + major()]};
                multiply(second[m][block], low, both);
                multiply(second[m][block], high, both);
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
                // The products with leading and other bits of the outputs' gradients are in different columns.
                const float others = BLOCKS == 2 ? second[m][BLOCKS - 1][j] : exchange(second[m][0][j], 2);
                if (column < A) gradients[(I + 1 + column) * U + unit] = unit < H ? second[m][0][j] + others : 0.0f;
            }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float sum = biases[m][j];
                sum += exchange(sum, 1);
                sum += exchange(sum, 2);
                if (minor() == 0) gradients[I * U + unit_warp() * 32 + m * 16 + major() + j * 8] = sum;
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
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            compute_hidden(s, w, tile + t, h[t]);
            add_outputs(w, h[t], s.parts[chunk % 2][row_warp()][unit_warp()], t * TILE);
        }
        // Who is slow may still read the parts of this chunk during the next one, not during the one after that.
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
        for (int t = 0; t < TILES; t++) sums.add(s, w, tile + t, h[t], d + t * TILE);
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
