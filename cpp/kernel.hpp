// What a compiled kernel offers, independent of the instruction set it was compiled for.
//
// kernel.cpp is compiled once per instruction set; each compilation defines one Kernel. Nothing in this header may
// contain inline code that does arithmetic: the linker would keep one copy of it, perhaps the wrong one.
#pragma once

#include <cstdint>

namespace bdpi {

constexpr int kMaxLayers = 64;  // weight layers of a network, the output layer included
constexpr int kMaxLanes = 16;   // widest register, in floats; rows are padded to a multiple of the kernel's own

enum class Activation : int { tanh = 0, relu = 1 };

// A multi-layer perceptron: sizes[0] inputs, sizes[1 .. n_layers-1] hidden units, sizes[n_layers] outputs.
// Its parameters are one vector, in PyTorch's order: W0 (out x in, row-major), b0, W1, b1, ...
struct Shape {
    int n_layers;
    int sizes[kMaxLayers + 1];
    Activation activation;
    bool one_hot;  // the input is the one-hot vector of a state number, and only the number is stored
    bool sparse;   // most inputs of a batch are what they are in most rows; W0 is stored as (in x out), see wide.hpp
};

// One network in training: parameters and Adam's two moments, each n_parameters long (padded to kMaxLanes).
struct Network {
    float* parameters;
    float* first_moment;
    float* second_moment;
    int64_t steps;  // Adam steps made so far
};

// The replay memory, row-major. `observations` is float[n][n_inputs], uint8[n][n_inputs], or int64[n] for one-hot states.
struct Transitions {
    const void* observations;
    const void* next_observations;
    bool has_bytes;
    const int64_t* actions;
    const float* rewards;
    const float* discounts;
    const bool* masks;       // [n][n_actions]: which actions are allowed in the state; null: all
    const bool* next_masks;  // the same for the next state
    // Networks see (x - shift) * factor of dense observations; null: the observations themselves.
    const float* shift;
    const float* factor;
    // They learn (Q - return_shift) * return_factor, from rewards that are changed accordingly.
    float return_shift;
    float return_factor;
};

// What rules.hpp says of critic rules and actor rules.
using CriticRule = float (*)(const float* q, const float* next_a, const float* next_b, int n_actions, int action,
                             float reward, float discount, float parameter);
using ActorRule = void (*)(const float* policy, const float* q, int n_actions, float parameter, float* target);

template <class Rule>
struct NamedRule {
    const char* name;
    Rule rule;
};

struct Hyperparameters {
    int critic_iterations;
    int fit_steps;
    double learning_rate;
    double actor_learning_rate;
    CriticRule critic_rule;
    float critic_parameter;
    ActorRule actor_rule;  // null: there is no actor to train
    float actor_parameter;
    bool cross_entropy;  // the actor minimises the cross-entropy to its target, else the squared error
    float prior_scale;   // of a critic's fixed random function; 0: it has none
};

// How rows differ from the values that most of them have: once by columns, and once by rows.
struct Differences {
    float* usual;            // [n_inputs]
    int32_t *column_starts, *row_starts;  // [n_inputs + 1], [n + 1]: where those of each begin
    int32_t *rows_in_column, *columns_in_row;
    float *values_in_column, *values_in_row;
    int64_t capacity;
};

// Distinct rows of a batch: a network is evaluated once per row.
// Few dense inputs: row j is transition j. One-hot or many inputs: `weight` counts the transitions of a distinct row.
struct Rows {
    int n;          // padded to a multiple of the kernel's lanes
    float* inputs;  // dense: [n_inputs][n], that is, transposed: neighbouring samples are neighbours in memory
    const int32_t* states;   // one-hot: the state of each row, or null where row = state
    int32_t* states_memory;  // where `states` points when it is not null
    float* weight;  // share of the batch's transitions that have this row; 0 for padding
    int32_t* row_of;         // [batch_size]: transition -> row
    Differences differences;  // of sparse inputs
};

// Of many inputs, those that a batch needs; null pointers where inputs are few.
struct Columns {
    int n;
    int32_t* indices;  // [n_inputs]
    int32_t* is_used;  // [n_inputs]: not zero where a weight has a moment or a row is not zero
};

// Scratch memory of one thread; all pointers are set once, when the learner is made.
struct Workspace {
    Rows rows, next_rows;
    float* hidden[kMaxLayers];  // [units][n]: activations, then (in the backward pass) their gradients
    float* output;              // [n_outputs][n]
    float* output_gradient;
    float* target;
    float* next_a;
    float* next_b;
    float* prior;               // prior_scale times the prior function, at the states
    float* next_prior;          // and at the next states
    float* prior_sum;           // network and prior together
    float* action_values[3];    // [n_outputs]: of one transition, as rules see them
    float* gradient;            // like the parameters
    int32_t* state_to_row;      // one-hot: [n_states], -1 where absent
    float* prior_parameters;    // of a critic, like its own
    Columns columns;
    int32_t* row_table;         // many inputs: to find equal rows, [kRowTable * batch_size] at least
    float* delta_by_row;        // sparse inputs: [n][units of the first layer, padded]
};

constexpr int kMany = 128;    // inputs from which on equal rows, unused columns and usual values are looked for
constexpr int kRowTable = 2;  // places for each row

static inline bool has_many_inputs(const Shape& shape) { return !shape.one_hot && shape.sizes[0] >= kMany; }

struct FitResult {
    double loss;    // mean squared error before the first Adam step
    double mean_q;  // critics: mean of Q_A over the batch's states and all actions
};

struct Kernel {
    const char* name;
    int lanes;

    // Network outputs for `rows`: [n_outputs][rows.n] in workspace.output; `softmax` makes them probabilities.
    void (*predict)(const Shape&, const float* parameters, const Rows&, bool softmax, Workspace&);

    // Lays a batch out in the workspace, with the next states or without. Returns the shape of the networks that are to
    // be trained on it: of many inputs, those that are in workspace.columns, where is_used says which have moments.
    Shape (*gather)(const Shape&, const Transitions&, const int64_t* batch, int batch_size, bool with_next, Workspace&);

    // One critic's epoch: N_t training iterations on one batch. `role_a` and `role_b` are Q_A and Q_B at entry; they
    // have changed roles an odd or even number of times at exit, as critic_iterations says. `prior` holds the parameters
    // of the critic's prior function. Writes the last Q', [batch_size][n_actions].
    FitResult (*train_critic)(const Shape&, const Hyperparameters&, const Transitions&, const int64_t* batch,
                              int batch_size, const float* prior, Network& role_a, Network& role_b, float* q,
                              Workspace&);

    // One step of the actor after one critic, on that critic's batch and Q'.
    FitResult (*train_actor)(const Shape&, const Hyperparameters&, int batch_size, Network& actor, const float* q,
                             Workspace&);

    const NamedRule<CriticRule>* critic_rules;  // those that it has; the last one has no name
    const NamedRule<ActorRule>* actor_rules;

    // Fused multiply-adds per call on one thread; the caller measures the time.
    int64_t (*fma_burst)(float* sink);
};

}  // namespace bdpi
