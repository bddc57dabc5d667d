// From inputs to outputs. Activations are [units][rows]; the loops work on tiles small enough for registers.
// Included by kernel.cpp alone, inside its anonymous namespace: each instruction set gets its own copy.

// Registers: 32 of them on AVX-512 and NEON, 16 on AVX2 and SSE.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileUnits = 4, kTileBlocks = 4;
#else
constexpr int kTileUnits = 4, kTileBlocks = 2;
#endif

inline int n_weights(const Shape& shape, int layer) { return shape.sizes[layer] * shape.sizes[layer + 1]; }
inline int n_outputs(const Shape& shape) { return shape.sizes[shape.n_layers]; }

inline int64_t layer_offset(const Shape& shape, int layer) {
    int64_t offset = 0;
    for (int i = 0; i < layer; ++i) offset += n_weights(shape, i) + shape.sizes[i + 1];
    return offset;
}

enum class Epilogue { none, tanh, relu };

template <Epilogue epilogue>
inline Vec finish(Vec z) {
    if constexpr (epilogue == Epilogue::tanh) return hyperbolic_tangent(z);
    if constexpr (epilogue == Epilogue::relu) return max(z, Vec{});
    return z;
}

// out[u][b] = f(bias[u] + sum_i weights[u][i] * in[i][b]) for a tile of `units` units and `blocks` registers of rows.
template <int units, int blocks, Epilogue epilogue>
inline void forward_tile(const float* weights, const float* bias, int n_in, const float* in, float* out, int n) {
    Vec sum[units][blocks];
    BDPI_UNROLL for (int u = 0; u < units; ++u)
        BDPI_UNROLL for (int b = 0; b < blocks; ++b) sum[u][b] = splat(bias[u]);
    for (int i = 0; i < n_in; ++i) {
        Vec x[blocks];
        BDPI_UNROLL for (int b = 0; b < blocks; ++b) x[b] = load(in + int64_t{i} * n + b * kLanes);
        BDPI_UNROLL for (int u = 0; u < units; ++u) {
            const Vec w = splat(weights[int64_t{u} * n_in + i]);
            BDPI_UNROLL for (int b = 0; b < blocks; ++b) sum[u][b] += w * x[b];
        }
    }
    BDPI_UNROLL for (int u = 0; u < units; ++u)
        BDPI_UNROLL for (int b = 0; b < blocks; ++b) store(out + int64_t{u} * n + b * kLanes, finish<epilogue>(sum[u][b]));
}

template <int units, Epilogue epilogue>
inline void forward_units(const float* weights, const float* bias, int n_in, const float* in, float* out, int n) {
    int row = 0;
    for (; row + kTileBlocks * kLanes <= n; row += kTileBlocks * kLanes)
        forward_tile<units, kTileBlocks, epilogue>(weights, bias, n_in, in + row, out + row, n);
    for (; row < n; row += kLanes) forward_tile<units, 1, epilogue>(weights, bias, n_in, in + row, out + row, n);
}

// One dense layer: weights [n_out][n_in], in [n_in][n], out [n_out][n].
template <Epilogue epilogue>
void forward_dense(const float* weights, const float* bias, int n_in, int n_out, const float* in, float* out, int n) {
    int unit = 0;
    for (; unit + kTileUnits <= n_out; unit += kTileUnits)
        forward_units<kTileUnits, epilogue>(weights + int64_t{unit} * n_in, bias + unit, n_in, in,
                                            out + int64_t{unit} * n, n);
    weights += int64_t{unit} * n_in, bias += unit, out += int64_t{unit} * n;
    static_assert(kTileUnits == 4);
    switch (n_out - unit) {
        case 3: return forward_units<3, epilogue>(weights, bias, n_in, in, out, n);
        case 2: return forward_units<2, epilogue>(weights, bias, n_in, in, out, n);
        case 1: return forward_units<1, epilogue>(weights, bias, n_in, in, out, n);
        default: return;
    }
}

// The first layer on one-hot inputs: a weight column is looked up, not multiplied.
template <Epilogue epilogue>
void forward_one_hot(const float* weights, const float* bias, int n_states, int n_out, const Rows& rows, float* out) {
    for (int unit = 0; unit < n_out; ++unit) {
        const float* w = weights + int64_t{unit} * n_states;
        float* o = out + int64_t{unit} * rows.n;
        for (int row = 0; row < rows.n; row += kLanes) {
            Vec z;
            if (rows.states == nullptr && row + kLanes <= n_states) {
                z = load(w + row);
            } else {
                for (int i = 0; i < kLanes; ++i) {
                    const int state = rows.states ? rows.states[row + i] : row + i;
                    z[i] = state < n_states ? w[state] : 0.0f;
                }
            }
            store(o + row, finish<epilogue>(z + bias[unit]));
        }
    }
}

// The first layer on sparse inputs: weights are [n_in][n_out], and a row begins with what the usual values give.
template <int blocks, Epilogue epilogue>
inline void forward_sparse_units(const float* weights, const float* bias, int n_in, int n_out, int unit, const Rows& rows,
                                 float* out) {
    const Differences& differences = rows.differences;
    const float* w = weights + unit;
    Vec usual[blocks];
    BDPI_UNROLL for (int b = 0; b < blocks; ++b) usual[b] = load(bias + unit + b * kLanes);
    for (int i = 0; i < n_in; ++i)
        BDPI_UNROLL for (int b = 0; b < blocks; ++b)
            usual[b] += differences.usual[i] * load(w + int64_t{i} * n_out + b * kLanes);
    for (int row = 0; row < rows.n; row += kLanes) {
        Vec tile[blocks][kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
            Vec sum[blocks];
            BDPI_UNROLL for (int b = 0; b < blocks; ++b) sum[b] = usual[b];
            for (int32_t d = differences.row_starts[row + lane]; d < differences.row_starts[row + lane + 1]; ++d) {
                const float* column = w + differences.columns_in_row[d];
                const Vec value = splat(differences.values_in_row[d]);
                BDPI_UNROLL for (int b = 0; b < blocks; ++b) sum[b] += value * load(column + b * kLanes);
            }
            BDPI_UNROLL for (int b = 0; b < blocks; ++b) tile[b][lane] = sum[b];
        }
        for (int b = 0; b < blocks; ++b) {
            transpose(tile[b]);
            const int first = unit + b * kLanes;
            for (int u = 0; u < kLanes && first + u < n_out; ++u)
                store(out + int64_t{first + u} * rows.n + row, finish<epilogue>(tile[b][u]));
        }
    }
}

template <Epilogue epilogue>
void forward_sparse(const float* weights, const float* bias, int n_in, int n_out, const Rows& rows, float* out) {
    int unit = 0;
    for (; unit + 2 * kLanes <= n_out; unit += 2 * kLanes)
        forward_sparse_units<2, epilogue>(weights, bias, n_in, n_out, unit, rows, out);
    for (; unit < n_out; unit += kLanes)
        forward_sparse_units<1, epilogue>(weights, bias, n_in, n_out, unit, rows, out);
}

template <Epilogue epilogue>
void forward_layer(const Shape& shape, int layer, const float* parameters, const Rows& rows, const float* in,
                   float* out) {
    const int n_in = shape.sizes[layer], n_out = shape.sizes[layer + 1];
    const float* weights = parameters + layer_offset(shape, layer);
    const float* bias = weights + n_weights(shape, layer);
    if (layer == 0 && shape.one_hot) {
        forward_one_hot<epilogue>(weights, bias, n_in, n_out, rows, out);
    } else if (layer == 0 && shape.sparse) {
        forward_sparse<epilogue>(weights, bias, n_in, n_out, rows, out);
    } else {
        forward_dense<epilogue>(weights, bias, n_in, n_out, in, out, rows.n);
    }
}

// Fills workspace.hidden and workspace.output.
void forward(const Shape& shape, const float* parameters, const Rows& rows, Workspace& workspace) {
    const float* in = rows.inputs;
    for (int layer = 0; layer + 1 < shape.n_layers; ++layer) {
        float* out = workspace.hidden[layer];
        if (shape.activation == Activation::tanh) {
            forward_layer<Epilogue::tanh>(shape, layer, parameters, rows, in, out);
        } else {
            forward_layer<Epilogue::relu>(shape, layer, parameters, rows, in, out);
        }
        in = out;
    }
    forward_layer<Epilogue::none>(shape, shape.n_layers - 1, parameters, rows, in, workspace.output);
}

// In place: [n_outputs][n] scores become probabilities.
void softmax(float* z, int n_out, int n) {
    for (int row = 0; row < n; row += kLanes) {
        Vec top = load(z + row);
        for (int a = 1; a < n_out; ++a) top = max(top, load(z + int64_t{a} * n + row));
        Vec total{};
        for (int a = 0; a < n_out; ++a) {
            const Vec e = exponential(load(z + int64_t{a} * n + row) - top);
            store(z + int64_t{a} * n + row, e);
            total += e;
        }
        const Vec scale = 1.0f / total;
        for (int a = 0; a < n_out; ++a) store(z + int64_t{a} * n + row, load(z + int64_t{a} * n + row) * scale);
    }
}
