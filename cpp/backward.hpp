// From gradients of the outputs to gradients of all parameters.
// Included by kernel.cpp alone, inside its anonymous namespace: each instruction set gets its own copy.

// Tile of a weight gradient: kGradOut x kGradIn sums, one per lane, so that one transposition finishes all of them.
constexpr int kGradOut = kLanes == 4 ? 2 : kLanes / 4, kGradIn = kLanes / kGradOut;

// gradient[o][i] = sum over rows of delta[o][row] * in[i][row], for a tile of at most kGradOut x kGradIn weights.
template <int n_o, int n_i>
inline void weight_gradient_tile(const float* delta, const float* in, int n, float* gradient, int64_t stride) {
    Vec sum[kLanes] = {};
    for (int row = 0; row < n; row += kLanes) {
        Vec x[n_i];
        BDPI_UNROLL for (int i = 0; i < n_i; ++i) x[i] = load(in + int64_t{i} * n + row);
        BDPI_UNROLL for (int o = 0; o < n_o; ++o) {
            const Vec d = load(delta + int64_t{o} * n + row);
            BDPI_UNROLL for (int i = 0; i < n_i; ++i) sum[o * n_i + i] += d * x[i];
        }
    }
    const Vec sums = horizontal_sums<n_o * n_i>(sum);
    BDPI_UNROLL for (int o = 0; o < n_o; ++o)
        BDPI_UNROLL for (int i = 0; i < n_i; ++i) gradient[o * stride + i] = sums[o * n_i + i];
}

template <int n_o>
inline void weight_gradient_rows(const float* delta, const float* in, int n_in, int n, float* gradient,
                                 int64_t stride) {
    int i = 0;
    for (; i + kGradIn <= n_in; i += kGradIn)
        weight_gradient_tile<n_o, kGradIn>(delta, in + int64_t{i} * n, n, gradient + i, stride);
    const float* rest = in + int64_t{i} * n;
    switch (n_in - i) {
        case 3: return weight_gradient_tile<n_o, (kGradIn > 3 ? 3 : 1)>(delta, rest, n, gradient + i, stride);
        case 2: return weight_gradient_tile<n_o, (kGradIn > 2 ? 2 : 1)>(delta, rest, n, gradient + i, stride);
        case 1: return weight_gradient_tile<n_o, 1>(delta, rest, n, gradient + i, stride);
        default: return;
    }
}

// All weights between `n_in` inputs and `n_out` outputs; `stride` is the length of a row of the weight matrix.
void weight_gradient(const float* delta, int n_out, const float* in, int n_in, int n, float* gradient, int64_t stride) {
    int o = 0;
    for (; o + kGradOut <= n_out; o += kGradOut)
        weight_gradient_rows<kGradOut>(delta + int64_t{o} * n, in, n_in, n, gradient + o * stride, stride);
    const float* rest = delta + int64_t{o} * n;
    switch (n_out - o) {
        case 3: return weight_gradient_rows<(kGradOut > 3 ? 3 : 1)>(rest, in, n_in, n, gradient + o * stride, stride);
        case 2: return weight_gradient_rows<(kGradOut > 2 ? 2 : 1)>(rest, in, n_in, n, gradient + o * stride, stride);
        case 1: return weight_gradient_rows<1>(rest, in, n_in, n, gradient + o * stride, stride);
        default: return;
    }
}

// gradient[o] = sum over rows of delta[o][row], for up to four units at a time: one chain of additions would wait for
// itself.
template <int units>
inline void bias_gradient_tile(const float* delta, int n, float* gradient) {
    Vec sum[4] = {};
    for (int row = 0; row < n; row += kLanes)
        BDPI_UNROLL for (int o = 0; o < units; ++o) sum[o] += load(delta + int64_t{o} * n + row);
    const Vec sums = horizontal_sums<units>(sum);
    BDPI_UNROLL for (int o = 0; o < units; ++o) gradient[o] = sums[o];
}

void bias_gradient(const float* delta, int n_out, int n, float* gradient) {
    int o = 0;
    for (; o + 4 <= n_out; o += 4) bias_gradient_tile<4>(delta + int64_t{o} * n, n, gradient + o);
    const float* rest = delta + int64_t{o} * n;
    switch (n_out - o) {
        case 3: return bias_gradient_tile<3>(rest, n, gradient + o);
        case 2: return bias_gradient_tile<2>(rest, n, gradient + o);
        case 1: return bias_gradient_tile<1>(rest, n, gradient + o);
        default: return;
    }
}

// On one-hot inputs every row has a weight column of its own, so its gradient is just the row's delta. Columns of
// absent states keep the zero they were given when the batch was laid out.
void one_hot_gradient(const float* delta, int n_out, const Rows& rows, int n_states, float* gradient) {
    for (int o = 0; o < n_out; ++o) {
        float* g = gradient + int64_t{o} * n_states;
        const float* d = delta + int64_t{o} * rows.n;
        if (rows.states == nullptr) {
            int row = 0;
            for (; row + kLanes <= n_states; row += kLanes) store(g + row, load(d + row));
            for (; row < n_states; ++row) g[row] = d[row];
        } else {
            for (int row = 0; row < rows.n; ++row)
                if (rows.weight[row] > 0.0f) g[rows.states[row]] = d[row];
        }
    }
}

void input_layer_gradient(const Shape& shape, const Rows& rows, const float* delta, int first_unit, int n_units,
                          float* gradient) {
    const int n_in = shape.sizes[0];
    if (shape.one_hot) {
        one_hot_gradient(delta, n_units, rows, n_in, gradient + int64_t{first_unit} * n_in);
    } else {
        weight_gradient(delta, n_units, rows.inputs, n_in, rows.n, gradient + int64_t{first_unit} * n_in, n_in);
    }
    bias_gradient(delta, n_units, rows.n, gradient + n_weights(shape, 0) + first_unit);
}

// Of all weights [n_in][n_out] on sparse inputs: what the usual values give, and what rows differ by.
void sparse_gradient(const float* delta, int n_out, const Rows& rows, int n_in, float* gradient, float* delta_by_row) {
    const int stride = padded(n_out);
    for (int unit = 0; unit < n_out; unit += kLanes) {
        for (int row = 0; row < rows.n; row += kLanes) {
            Vec tile[kLanes];
            for (int u = 0; u < kLanes; ++u)
                tile[u] = unit + u < n_out ? load(delta + int64_t{unit + u} * rows.n + row) : Vec{};
            transpose(tile);
            for (int lane = 0; lane < kLanes; ++lane) store(delta_by_row + int64_t{row + lane} * stride + unit, tile[lane]);
        }
    }
    float* bias = gradient + int64_t{n_in} * n_out;
    bias_gradient(delta, n_out, rows.n, bias);
    const Differences& differences = rows.differences;
    for (int i = 0; i < n_in; ++i) {
        const int32_t first = differences.column_starts[i], end = differences.column_starts[i + 1];
        float* g = gradient + int64_t{i} * n_out;
        int unit = 0;
        for (; unit + 2 * kLanes <= n_out; unit += 2 * kLanes) {
            Vec sum[2][2] = {};  // of every other difference: an addition waits for the one before
            const auto add = [&](int32_t d, Vec* to) {
                const float* row = delta_by_row + unit + differences.rows_in_column[d];
                const Vec value = splat(differences.values_in_column[d]);
                to[0] += value * load(row);
                to[1] += value * load(row + kLanes);
            };
            int32_t d = first;
            for (; d + 2 <= end; d += 2) add(d, sum[0]), add(d + 1, sum[1]);
            if (d < end) add(d, sum[0]);
            const float usual = differences.usual[i];
            store(g + unit, sum[0][0] + sum[1][0] + usual * load(bias + unit));
            store(g + unit + kLanes, sum[0][1] + sum[1][1] + usual * load(bias + unit + kLanes));
        }
        for (; unit < n_out; unit += kLanes) {
            Vec sum = differences.usual[i] * load(bias + unit);
            for (int32_t d = first; d < end; ++d)
                sum += differences.values_in_column[d] * load(delta_by_row + unit + differences.rows_in_column[d]);
            for (int u = 0; u < kLanes && unit + u < n_out; ++u) g[unit + u] = sum[u];
        }
    }
}

// hidden[u] becomes the gradient with respect to the unit's input: f'(hidden[u]) * sum_o weights[o][u] * delta[o].
template <int units, int blocks, Activation activation>
inline void backward_tile(const float* weights, int n_in, int n_out, const float* delta, float* hidden, int n) {
    Vec sum[units][blocks] = {};
    for (int o = 0; o < n_out; ++o) {
        Vec d[blocks];
        BDPI_UNROLL for (int b = 0; b < blocks; ++b) d[b] = load(delta + int64_t{o} * n + b * kLanes);
        BDPI_UNROLL for (int u = 0; u < units; ++u) {
            const Vec w = splat(weights[int64_t{o} * n_in + u]);
            BDPI_UNROLL for (int b = 0; b < blocks; ++b) sum[u][b] += w * d[b];
        }
    }
    BDPI_UNROLL for (int u = 0; u < units; ++u) {
        BDPI_UNROLL for (int b = 0; b < blocks; ++b) {
            float* cell = hidden + int64_t{u} * n + b * kLanes;
            const Vec h = load(cell);
            if constexpr (activation == Activation::tanh) {
                store(cell, sum[u][b] * (1.0f - h * h));
            } else {
                store(cell, h > 0.0f ? sum[u][b] : Vec{});
            }
        }
    }
}

template <int units>
inline void backward_units(const float* weights, int n_in, int n_out, const float* delta, float* hidden, int n,
                           Activation activation) {
    int row = 0;
    for (; row + kTileBlocks * kLanes <= n; row += kTileBlocks * kLanes) {
        if (activation == Activation::tanh) {
            backward_tile<units, kTileBlocks, Activation::tanh>(weights, n_in, n_out, delta + row, hidden + row, n);
        } else {
            backward_tile<units, kTileBlocks, Activation::relu>(weights, n_in, n_out, delta + row, hidden + row, n);
        }
    }
    for (; row < n; row += kLanes) {
        if (activation == Activation::tanh) {
            backward_tile<units, 1, Activation::tanh>(weights, n_in, n_out, delta + row, hidden + row, n);
        } else {
            backward_tile<units, 1, Activation::relu>(weights, n_in, n_out, delta + row, hidden + row, n);
        }
    }
}

// From workspace.output_gradient and workspace.hidden to workspace.gradient; overwrites workspace.hidden.
// A layer's units are visited a few at a time, and everything that touches them is done in one visit.
void backward(const Shape& shape, const float* parameters, const Rows& rows, Workspace& workspace) {
    const float* delta = workspace.output_gradient;
    for (int layer = shape.n_layers - 1; layer > 0; --layer) {
        const int n_in = shape.sizes[layer], n_out = shape.sizes[layer + 1];
        const int64_t offset = layer_offset(shape, layer);
        float* in = workspace.hidden[layer - 1];
        for (int unit = 0; unit < n_in; unit += kTileUnits) {
            const int units = n_in - unit < kTileUnits ? n_in - unit : kTileUnits;
            float* tile = in + int64_t{unit} * rows.n;
            weight_gradient(delta, n_out, tile, units, rows.n, workspace.gradient + offset + unit, n_in);
            if (units == kTileUnits) {
                backward_units<kTileUnits>(parameters + offset + unit, n_in, n_out, delta, tile, rows.n,
                                           shape.activation);
            } else {
                for (int u = 0; u < units; ++u)
                    backward_units<1>(parameters + offset + unit + u, n_in, n_out, delta, tile + int64_t{u} * rows.n,
                                      rows.n, shape.activation);
            }
            if (layer == 1 && !shape.sparse) input_layer_gradient(shape, rows, tile, unit, units, workspace.gradient);
        }
        bias_gradient(delta, n_out, rows.n, workspace.gradient + offset + n_weights(shape, layer));
        delta = in;
    }
    if (shape.sparse) {
        sparse_gradient(delta, shape.sizes[1], rows, shape.sizes[0], workspace.gradient, workspace.delta_by_row);
    } else if (shape.n_layers == 1) {
        input_layer_gradient(shape, rows, delta, 0, n_outputs(shape), workspace.gradient);
    }
}
