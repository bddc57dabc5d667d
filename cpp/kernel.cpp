// The mathematics of one learning epoch, for multi-layer perceptrons, on one thread.
//
// Every pass is a plain function, from the bottom up in the headers below. Arrays of activations are [units][rows]: a
// register holds one unit for kLanes samples, weights are broadcast, and no pass but the weight gradient needs a
// horizontal sum. Hidden units are visited a few at a time so that those stay in the first-level cache.
#include "kernel.hpp"

#include <cmath>
#include <cstring>
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

inline int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

#include "forward.hpp"
#include "backward.hpp"
#include "fit.hpp"
#include "wide.hpp"
#include "batch.hpp"
#include "rules.hpp"  // of the package: src/bdpi/learner/rules

const NamedRule<CriticRule> kCriticRules[] = {{"clipped_double", clipped_double}, {nullptr, nullptr}};
const NamedRule<ActorRule> kActorRules[] = {
    {"conservative", conservative}, {"imitation", imitation}, {nullptr, nullptr}};

// Values of one row, of which there is one every `stride`, as rules see them: minus infinity for actions that are not
// allowed, unless none is. `masks` has a mask for each transition, or is null.
void read_values(const float* values, int64_t stride, int n_actions, const bool* masks, int64_t transition, float* out) {
    const bool* mask = masks ? masks + transition * n_actions : nullptr;
    bool any = false;
    for (int a = 0; a < n_actions; ++a) {
        out[a] = !mask || mask[a] ? values[a * stride] : -INFINITY;
        any |= !mask || mask[a];
    }
    if (!any) read_values(values, stride, n_actions, nullptr, transition, out);
}

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

// Q'(s, .) = Q_A(s, .), and for the action that was taken, what the critic's rule adds   (Eq. abcdqn)
// `q` is Q_A(s, .), `next_a` and `next_b` are both opinions about s', all [n_actions][rows]. Writes q_new,
// [batch_size][n_actions], and adds to workspace.target, which holds what the network says now: a row's target is the
// mean of the targets of its transitions.
FitResult critic_targets(const Hyperparameters& hyper, const Transitions& data, const int64_t* batch, int batch_size,
                         int n_actions, const float* q, const float* next_a, const float* next_b, float* q_new,
                         Workspace& workspace) {
    const Rows &rows = workspace.rows, &next = workspace.next_rows;
    const int64_t n = rows.n, next_n = next.n;
    auto [here, there_a, there_b] = workspace.action_values;
    double squared_error = 0.0, total_q = 0.0;
    for (int j = 0; j < batch_size; ++j) {
        const int64_t transition = batch[j], row = rows.row_of[j], next_row = next.row_of[j];
        read_values(q + row, n, n_actions, nullptr, transition, here);
        read_values(next_a + next_row, next_n, n_actions, data.next_masks, transition, there_a);
        read_values(next_b + next_row, next_n, n_actions, data.next_masks, transition, there_b);
        const int action = static_cast<int>(data.actions[transition]);
        const float discount = data.discounts[transition];
        const float reward = (data.rewards[transition] - (1.0f - discount) * data.return_shift) * data.return_factor;
        const float change = hyper.critic_rule(here, there_a, there_b, n_actions, action, reward, discount,
                                               hyper.critic_parameter);
        workspace.target[action * n + row] += change / (rows.weight[row] * static_cast<float>(batch_size));
        squared_error += static_cast<double>(change) * change;

        for (int a = 0; a < n_actions; ++a) total_q += here[a];
        here[action] += change;
        read_values(here, 1, n_actions, data.masks, transition, q_new + int64_t{j} * n_actions);
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

FitResult train_actor(const Shape& shape, const Hyperparameters& hyper, int batch_size, Network& actor, const float* q,
                      Workspace& workspace) {
    const FlushDenormals scope;
    Rows& rows = workspace.rows;
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
    BDPI_STRING(BDPI_KERNEL), kLanes, predict, gather, train_critic, train_actor, kCriticRules, kActorRules, fma_burst,
};

}  // namespace bdpi
