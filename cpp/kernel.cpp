// The mathematics of one learning epoch, for multi-layer perceptrons, on one thread.
//
// Every pass is a plain function. Arrays of activations are [units][rows]: a register holds one unit for kLanes
// samples, weights are broadcast, and no pass but the weight gradient needs a horizontal sum. The loops work on tiles
// small enough for registers; `hidden` is visited a few units at a time so that those stay in the first-level cache.
#include "kernel.hpp"

#include <cmath>
#include <utility>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

#ifndef BDPI_KERNEL
#error "compile with -DBDPI_KERNEL=<instruction set>"
#endif
// Loops over a tile have to vanish, or the tile would live in memory and not in registers.
#if defined(__clang__)
#define BDPI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BDPI_UNROLL _Pragma("GCC unroll 16")
#endif
#define BDPI_STRING_(x) #x
#define BDPI_STRING(x) BDPI_STRING_(x)

namespace bdpi {
namespace {

#include "simd.hpp"

// Registers: 32 of them on AVX-512 and NEON, 16 on AVX2 and SSE.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileUnits = 4, kTileBlocks = 4;
#else
constexpr int kTileUnits = 4, kTileBlocks = 2;
#endif
// Tile of a weight gradient: kGradOut x kGradIn sums, one per lane, so that one transposition finishes all of them.
constexpr int kGradOut = kLanes == 4 ? 2 : kLanes / 4, kGradIn = kLanes / kGradOut;

// Rarely visited states leave moments that decay into denormal numbers, which most processors handle a hundred times
// slower; they are far below anything that matters, so they count as zero here.
class FlushDenormals {
  public:
#if defined(__SSE2__)
    FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#elif defined(__aarch64__)
    FlushDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t{1} << 24)));
    }
    ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

  private:
    uint64_t saved_;
#endif
};

inline int n_weights(const Shape& shape, int layer) { return shape.sizes[layer] * shape.sizes[layer + 1]; }
inline int n_outputs(const Shape& shape) { return shape.sizes[shape.n_layers]; }

inline int64_t layer_offset(const Shape& shape, int layer) {
    int64_t offset = 0;
    for (int i = 0; i < layer; ++i) offset += n_weights(shape, i) + shape.sizes[i + 1];
    return offset;
}

// ---------------------------------------------------------------------------------------------------------------
// Forward

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

template <Epilogue epilogue>
void forward_layer(const Shape& shape, int layer, const float* parameters, const Rows& rows, const float* in,
                   float* out) {
    const int n_in = shape.sizes[layer], n_out = shape.sizes[layer + 1];
    const float* weights = parameters + layer_offset(shape, layer);
    const float* bias = weights + n_weights(shape, layer);
    if (layer == 0 && shape.one_hot) {
        forward_one_hot<epilogue>(weights, bias, n_in, n_out, rows, out);
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

// ---------------------------------------------------------------------------------------------------------------
// Backward

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
                store(cell, sum[u][b] - sum[u][b] * h * h);
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
            if (layer == 1) input_layer_gradient(shape, rows, tile, unit, units, workspace.gradient);
        }
        bias_gradient(delta, n_out, rows.n, workspace.gradient + offset + n_weights(shape, layer));
        delta = in;
    }
    if (shape.n_layers == 1) input_layer_gradient(shape, rows, delta, 0, n_outputs(shape), workspace.gradient);
}

// ---------------------------------------------------------------------------------------------------------------
// Adam, and the fit of a network to a table of targets

// Adam's running powers of beta, so that a fit needs no call of pow per step.
struct AdamClock {
    static constexpr double beta1 = 0.9, beta2 = 0.999;
    double power1, power2;
    explicit AdamClock(int64_t steps)
        : power1(std::pow(beta1, static_cast<double>(steps))), power2(std::pow(beta2, static_cast<double>(steps))) {}
};

// The arrays are padded to whole registers; the padding has zero gradients and stays zero.
void adam_step(Network& network, const float* gradient, int64_t n_parameters, double learning_rate, AdamClock& clock) {
    clock.power1 *= AdamClock::beta1;
    clock.power2 *= AdamClock::beta2;
    ++network.steps;
    const float step = static_cast<float>(learning_rate / (1.0 - clock.power1));
    const float scale = static_cast<float>(1.0 / std::sqrt(1.0 - clock.power2));
    for (int64_t i = 0; i < n_parameters; i += kLanes) {
        const Vec g = load(gradient + i);
        Vec m = load(network.first_moment + i), v = load(network.second_moment + i);
        m += (g - m) * static_cast<float>(1.0 - AdamClock::beta1);
        v = v * static_cast<float>(AdamClock::beta2) + g * g * static_cast<float>(1.0 - AdamClock::beta2);
        store(network.first_moment + i, m);
        store(network.second_moment + i, v);
        const Vec p = load(network.parameters + i);
        store(network.parameters + i, p - step * m * reciprocal(square_root(v) * scale + 1e-8f));
    }
}

// d(mean squared error)/d(output). The mean is over transitions and outputs; rows.weight holds each row's share.
void squared_error_gradient(const Rows& rows, int n_out, const float* output, const float* target, float* gradient) {
    for (int row = 0; row < rows.n; row += kLanes) {
        const Vec weight = load(rows.weight + row) * (2.0f / static_cast<float>(n_out));
        for (int a = 0; a < n_out; ++a) {
            const int64_t cell = int64_t{a} * rows.n + row;
            store(gradient + cell, weight * (load(output + cell) - load(target + cell)));
        }
    }
}

// d(mean cross-entropy)/d(scores under the softmax).
void cross_entropy_gradient(const Rows& rows, int n_out, const float* output, const float* target, float* gradient) {
    for (int row = 0; row < rows.n; row += kLanes) {
        const Vec weight = load(rows.weight + row);
        for (int a = 0; a < n_out; ++a) {
            const int64_t cell = int64_t{a} * rows.n + row;
            store(gradient + cell, weight * (load(output + cell) - load(target + cell)));
        }
    }
}

// In place: gradient with respect to probabilities becomes gradient with respect to the scores under the softmax.
void softmax_gradient(int n_out, int n, const float* probabilities, float* gradient) {
    for (int row = 0; row < n; row += kLanes) {
        Vec dot{};
        for (int a = 0; a < n_out; ++a)
            dot += load(gradient + int64_t{a} * n + row) * load(probabilities + int64_t{a} * n + row);
        for (int a = 0; a < n_out; ++a) {
            const int64_t cell = int64_t{a} * n + row;
            store(gradient + cell, load(probabilities + cell) * (load(gradient + cell) - dot));
        }
    }
}

enum class Loss { squared_error, softmax_squared_error, softmax_cross_entropy };

// Full-batch Adam steps on the loss between the network and workspace.target.
// Entered with the forward pass of the unchanged network in the workspace: the first step needs no other.
void fit(const Shape& shape, Network& network, const Rows& rows, Loss loss, int fit_steps, double learning_rate,
         Workspace& workspace) {
    const int n_out = n_outputs(shape);
    const int64_t n_parameters = layer_offset(shape, shape.n_layers);
    AdamClock clock(network.steps);
    for (int step = 0; step < fit_steps; ++step) {
        if (step > 0) {
            forward(shape, network.parameters, rows, workspace);
            if (loss != Loss::squared_error) softmax(workspace.output, n_out, rows.n);
        }
        if (loss == Loss::softmax_cross_entropy) {
            cross_entropy_gradient(rows, n_out, workspace.output, workspace.target, workspace.output_gradient);
        } else {
            squared_error_gradient(rows, n_out, workspace.output, workspace.target, workspace.output_gradient);
            if (loss == Loss::softmax_squared_error)
                softmax_gradient(n_out, rows.n, workspace.output, workspace.output_gradient);
        }
        backward(shape, network.parameters, rows, workspace);
        adam_step(network, workspace.gradient, n_parameters, learning_rate, clock);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Batches

inline int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

void gather_dense(const float* observations, int n_in, const int64_t* batch, int batch_size, Rows& rows) {
    rows.n = padded(batch_size);
    for (int j = 0; j < rows.n; ++j) {
        const float* x = j < batch_size ? observations + batch[j] * n_in : nullptr;
        for (int i = 0; i < n_in; ++i) rows.inputs[int64_t{i} * rows.n + j] = x ? x[i] : 0.0f;
        rows.weight[j] = x ? 1.0f / static_cast<float>(batch_size) : 0.0f;
        if (x) rows.row_of[j] = j;
    }
}

// A batch of N one-hot transitions has at most n_states distinct rows, and the gradient of the summed error depends
// only on how often a row occurs and on the mean of its targets. So each distinct state is evaluated once: exact, and
// cheaper. Where all states together are fewer than a batch, row = state and nothing is looked up (states == nullptr).
void gather_one_hot(const int64_t* observations, int n_states, const int64_t* batch, int batch_size,
                    int32_t* state_to_row, Rows& rows) {
    const float share = 1.0f / static_cast<float>(batch_size);
    if (n_states <= batch_size) {
        rows.states = nullptr;
        rows.n = padded(n_states);
        for (int row = 0; row < rows.n; ++row) rows.weight[row] = 0.0f;
        for (int j = 0; j < batch_size; ++j) {
            rows.row_of[j] = static_cast<int32_t>(observations[batch[j]]);
            rows.weight[rows.row_of[j]] += share;
        }
        return;
    }
    int32_t* states = rows.states_memory;
    rows.states = states;
    int count = 0;
    for (int j = 0; j < batch_size; ++j) state_to_row[observations[batch[j]]] = -1;
    for (int j = 0; j < batch_size; ++j) {
        int32_t& row = state_to_row[observations[batch[j]]];
        if (row < 0) {
            row = count++;
            states[row] = static_cast<int32_t>(observations[batch[j]]);
            rows.weight[row] = 0.0f;
        }
        rows.row_of[j] = row;
        rows.weight[row] += share;
    }
    rows.n = padded(count);
    for (int row = count; row < rows.n; ++row) {
        states[row] = 0;
        rows.weight[row] = 0.0f;
    }
}

void gather(const Shape& shape, const void* observations, const int64_t* batch, int batch_size, Rows& rows,
            Workspace& workspace) {
    if (shape.one_hot) {
        gather_one_hot(static_cast<const int64_t*>(observations), shape.sizes[0], batch, batch_size,
                       workspace.state_to_row, rows);
    } else {
        gather_dense(static_cast<const float*>(observations), shape.sizes[0], batch, batch_size, rows);
    }
}

void clear_gradient(const Shape& shape, Workspace& workspace) {
    const int64_t n = layer_offset(shape, shape.n_layers);
    for (int64_t i = 0; i < n + kMaxLanes; ++i) workspace.gradient[i] = 0.0f;
}

// The first of the largest values whose action is allowed; the first action if none is.
inline int argmax(const float* values, int64_t stride, int count, const bool* mask) {
    int best = -1;
    for (int a = 0; a < count; ++a)
        if ((!mask || mask[a]) && (best < 0 || values[a * stride] > values[best * stride])) best = a;
    return best < 0 ? 0 : best;
}

inline const bool* mask_of(const bool* masks, int64_t transition, int n_actions) {
    return masks ? masks + transition * n_actions : nullptr;
}

// ---------------------------------------------------------------------------------------------------------------
// Actor rules: one function each. They see one transition.

// y = (1 - lambda) pi + lambda onehot(argmax Q')   (Eq. ppi_actor)
void conservative_rule(const float* policy, const float* q, int n_actions, float rate, float* target) {
    for (int a = 0; a < n_actions; ++a) target[a] = (1.0f - rate) * policy[a];
    target[argmax(q, 1, n_actions, nullptr)] += rate;
}

// y = softmax(Q' / temperature), or onehot(argmax Q') at temperature 0   (Eq. mimic)
void imitation_rule(const float*, const float* q, int n_actions, float temperature, float* target) {
    const int best = argmax(q, 1, n_actions, nullptr);
    float total = 0.0f;
    for (int a = 0; a < n_actions; ++a) {
        target[a] = temperature > 0.0f ? std::exp((q[a] - q[best]) / temperature) : (a == best ? 1.0f : 0.0f);
        total += target[a];
    }
    for (int a = 0; a < n_actions; ++a) target[a] /= total;
}

// ---------------------------------------------------------------------------------------------------------------
// The entry points

void copy(float* to, const float* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

void predict(const Shape& shape, const float* parameters, const Rows& rows, bool probabilities, Workspace& workspace) {
    const FlushDenormals scope;
    forward(shape, parameters, rows, workspace);
    if (probabilities) softmax(workspace.output, n_outputs(shape), rows.n);
}

void evaluate_prior(const Shape& shape, const float* parameters, const Rows& rows, float scale, float* prior,
                    Workspace& workspace) {
    forward(shape, parameters, rows, workspace);
    const int64_t count = int64_t{n_outputs(shape)} * rows.n;
    for (int64_t i = 0; i < count; ++i) prior[i] = scale * workspace.output[i];
}

// Q'(s, .) = Q_A(s, .), then Q'(s, a) += alpha (r + discount V(s') - Q_A(s, a))   (Eq. abcdqn)
// `q` is Q_A(s, .), `next_a` and `next_b` are both opinions about s', all [n_actions][rows]. Writes q_new,
// [batch_size][n_actions], and adds to workspace.target, which holds what the network says now: a row's target is the
// mean of the targets of its transitions.
FitResult critic_targets(const Hyperparameters& hyper, const Transitions& data, const int64_t* batch, int batch_size,
                         int n_actions, const float* q, const float* next_a, const float* next_b, float* q_new,
                         Workspace& workspace) {
    const Rows &rows = workspace.rows, &next = workspace.next_rows;
    const int64_t n = rows.n, next_n = next.n;
    double squared_error = 0.0, total_q = 0.0;
    for (int j = 0; j < batch_size; ++j) {
        const int64_t transition = batch[j], row = rows.row_of[j], next_row = next.row_of[j];
        const int best = argmax(next_a + next_row, next_n, n_actions, mask_of(data.next_masks, transition, n_actions));
        const float value_a = next_a[best * next_n + next_row], value_b = next_b[best * next_n + next_row];
        const float value = value_b < value_a ? value_b : value_a;
        const int64_t action = data.actions[transition];
        const float goal = data.rewards[transition] + data.discounts[transition] * value;
        const float change = hyper.critic_step_size * (goal - q[action * n + row]);
        workspace.target[action * n + row] += change / (rows.weight[row] * static_cast<float>(batch_size));
        squared_error += static_cast<double>(change) * change;

        const bool* mask = mask_of(data.masks, transition, n_actions);
        float* out = q_new + int64_t{j} * n_actions;
        for (int a = 0; a < n_actions; ++a) {
            total_q += q[a * n + row];
            out[a] = !mask || mask[a] ? q[a * n + row] + (a == action ? change : 0.0f) : -INFINITY;
        }
    }
    const double cells = static_cast<double>(batch_size) * n_actions;
    return {squared_error / cells, total_q / cells};
}

FitResult train_critic(const Shape& shape, const Hyperparameters& hyper, const Transitions& data, const int64_t* batch,
                       int batch_size, const float* prior, Network& role_a, Network& role_b, float* q_new,
                       Workspace& workspace) {
    const FlushDenormals scope;
    Network* a = &role_a;
    Network* b = &role_b;
    Rows& rows = workspace.rows;
    Rows& next = workspace.next_rows;
    gather(shape, data.next_observations, batch, batch_size, next, workspace);
    gather(shape, data.observations, batch, batch_size, rows, workspace);
    clear_gradient(shape, workspace);

    const int n_actions = n_outputs(shape);
    const int64_t cells = int64_t{n_actions} * rows.n, next_cells = int64_t{n_actions} * next.n;
    const bool has_prior = hyper.prior_scale != 0.0f;
    if (has_prior) {
        evaluate_prior(shape, prior, rows, hyper.prior_scale, workspace.prior, workspace);
        evaluate_prior(shape, prior, next, hyper.prior_scale, workspace.next_prior, workspace);
    }
    const auto evaluate_next = [&](const Network& network, float* values) {
        forward(shape, network.parameters, next, workspace);
        for (int64_t i = 0; i < next_cells; ++i)
            values[i] = workspace.output[i] + (has_prior ? workspace.next_prior[i] : 0.0f);
    };

    float* next_a = workspace.next_a;
    float* next_b = workspace.next_b;
    FitResult result{};
    for (int iteration = 0; iteration < hyper.critic_iterations; ++iteration) {
        if (iteration == 0) evaluate_next(*a, next_a);
        evaluate_next(*b, next_b);
        forward(shape, a->parameters, rows, workspace);
        copy(workspace.target, workspace.output, cells);
        const float* q = workspace.output;
        if (has_prior) {
            for (int64_t i = 0; i < cells; ++i) workspace.prior_sum[i] = workspace.output[i] + workspace.prior[i];
            q = workspace.prior_sum;
        }
        result = critic_targets(hyper, data, batch, batch_size, n_actions, q, next_a, next_b, q_new, workspace);
        fit(shape, *a, rows, Loss::squared_error, hyper.fit_steps, hyper.learning_rate, workspace);
        std::swap(a, b);
        std::swap(next_a, next_b);  // the new Q_A has not changed since its values at s' were computed
    }
    return result;
}

FitResult train_actor(const Shape& shape, const Hyperparameters& hyper, const Transitions& data, const int64_t* batch,
                      int batch_size, Network& actor, const float* q, Workspace& workspace) {
    const FlushDenormals scope;
    Rows& rows = workspace.rows;
    gather(shape, data.observations, batch, batch_size, rows, workspace);
    clear_gradient(shape, workspace);
    forward(shape, actor.parameters, rows, workspace);
    const int n_actions = n_outputs(shape);
    const int64_t n = rows.n;
    softmax(workspace.output, n_actions, rows.n);

    // A row's target is the mean of the targets of its transitions.
    for (int64_t cell = 0; cell < n_actions * n; ++cell) workspace.target[cell] = 0.0f;
    float* policy = workspace.action_values[0];
    float* target = workspace.action_values[1];
    double loss = 0.0;
    for (int j = 0; j < batch_size; ++j) {
        const int64_t row = rows.row_of[j];
        for (int a = 0; a < n_actions; ++a) policy[a] = workspace.output[a * n + row];
        hyper.actor_rule(policy, q + int64_t{j} * n_actions, n_actions, hyper.actor_parameter, target);
        const float share = 1.0f / (rows.weight[row] * static_cast<float>(batch_size));
        for (int a = 0; a < n_actions; ++a) {
            workspace.target[a * n + row] += share * target[a];
            const double change = static_cast<double>(target[a]) - policy[a];
            loss += hyper.cross_entropy ? -target[a] * std::log(policy[a] > 1e-30f ? policy[a] : 1e-30f) : change * change / n_actions;
        }
    }
    fit(shape, actor, rows, hyper.cross_entropy ? Loss::softmax_cross_entropy : Loss::softmax_squared_error,
        hyper.fit_steps, hyper.actor_learning_rate, workspace);
    return {loss / batch_size, 0.0};
}

// Independent chains of multiply-adds, enough of them to hide the latency: what the processor can do at most.
int64_t fma_burst(float* sink) {
    constexpr int rounds = 100000, chains = 12;
    const Vec w = splat(sink[0]), x = splat(sink[1]);
    Vec a = x, b = x * 2.0f, c = x * 3.0f, d = x * 4.0f, e = x * 5.0f, f = x * 6.0f;
    Vec g = x * 7.0f, h = x * 8.0f, i = x * 9.0f, j = x * 10.0f, k = x * 11.0f, l = x * 12.0f;
    for (int round = 0; round < rounds; ++round) {
        a = a * w + x, b = b * w + x, c = c * w + x, d = d * w + x, e = e * w + x, f = f * w + x;
        g = g * w + x, h = h * w + x, i = i * w + x, j = j * w + x, k = k * w + x, l = l * w + x;
    }
    const Vec total = a + b + c + d + e + f + g + h + i + j + k + l;
    for (int lane = 0; lane < kLanes; ++lane) sink[2 + lane % 2] = total[lane];
    return int64_t{chains} * rounds * kLanes;
}

}  // namespace

#define BDPI_NAME_(x) kernel_##x
#define BDPI_NAME(x) BDPI_NAME_(x)
extern const Kernel BDPI_NAME(BDPI_KERNEL);
const Kernel BDPI_NAME(BDPI_KERNEL) = {
    BDPI_STRING(BDPI_KERNEL), kLanes, predict, train_critic, train_actor, conservative_rule,
    imitation_rule, fma_burst,
};

}  // namespace bdpi
