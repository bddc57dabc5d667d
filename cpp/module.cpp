// Python bindings. Arguments are checked here, before anything is changed: sizes, index ranges, memory layout.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>

#include "engine.hpp"

namespace nb = nanobind;
using namespace bdpi;

using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<int64_t, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using ConstInts = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;
using Masks = std::optional<nb::ndarray<const bool, nb::c_contig, nb::device::cpu>>;
using Observations = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

Shape make_shape(const std::vector<int>& sizes, const std::string& activation, bool one_hot) {
    Shape shape{};
    if (sizes.size() < 2 || sizes.size() > kMaxLayers + 1)
        fail("a network needs 1 to " + std::to_string(kMaxLayers) + " weight layers, got " +
             std::to_string(static_cast<int>(sizes.size()) - 1));
    for (size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] < 1) fail("layer sizes must be positive, got " + std::to_string(sizes[i]));
        shape.sizes[i] = sizes[i];
    }
    shape.n_layers = static_cast<int>(sizes.size()) - 1;
    if (activation != "tanh" && activation != "relu") fail("activation must be 'tanh' or 'relu', got '" + activation + "'");
    shape.activation = activation == "tanh" ? Activation::tanh : Activation::relu;
    shape.one_hot = one_hot;
    return shape;
}

void expect_size(const char* name, size_t size, int64_t expected) {
    if (static_cast<int64_t>(size) != expected)
        fail(std::string(name) + " must have " + std::to_string(expected) + " elements, got " + std::to_string(size));
}

bool has_bytes(const Observations& array) {
    return array.dtype() == nb::dtype<uint8_t>() || array.dtype() == nb::dtype<bool>();
}

// Checks element type and shape; returns the number of observations.
int64_t check_observations(const char* name, const Observations& array, const Shape& shape) {
    if (shape.one_hot) {
        if (array.dtype() != nb::dtype<int64_t>() || array.ndim() != 1)
            fail(std::string(name) + " must be a one-dimensional int64 array of state numbers");
    } else if (!(array.dtype() == nb::dtype<float>() || has_bytes(array)) || array.ndim() != 2 ||
               static_cast<int>(array.shape(1)) != shape.sizes[0]) {
        fail(std::string(name) + " must be a float32, uint8 or bool array of shape (n, " +
             std::to_string(shape.sizes[0]) + ")");
    }
    return static_cast<int64_t>(array.shape(0));
}

void check_states(const char* name, const void* observations, const int64_t* indices, int64_t n, const Shape& shape) {
    if (!shape.one_hot) return;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t state = static_cast<const int64_t*>(observations)[indices ? indices[i] : i];
        if (state < 0 || state >= shape.sizes[0])
            fail(std::string(name) + ": state " + std::to_string(state) + " is outside 0.." +
                 std::to_string(shape.sizes[0] - 1));
    }
}

NetworkArrays network_arrays(const char* name, Floats& parameters, Floats& first, Floats& second, Ints& steps,
                             int64_t n_networks, int64_t n_parameters) {
    expect_size((std::string(name) + " parameters").c_str(), parameters.size(), n_networks * n_parameters);
    expect_size((std::string(name) + " first moments").c_str(), first.size(), n_networks * n_parameters);
    expect_size((std::string(name) + " second moments").c_str(), second.size(), n_networks * n_parameters);
    expect_size((std::string(name) + " steps").c_str(), steps.size(), n_networks);
    return {parameters.data(), first.data(), second.data(), steps.data()};
}

using State = std::tuple<Floats, Floats, Floats, Ints>;
using NativeRule = std::tuple<std::string, double, uintptr_t>;  // name, parameter, address

const bool* check_masks(const char* name, const Masks& masks, int64_t n, int n_actions) {
    if (!masks) return nullptr;
    expect_size(name, masks->size(), n * n_actions);
    return masks->data();
}

// How observations are scaled; state numbers are not.
const float* check_scales(const char* name, const std::optional<ConstFloats>& scales, const Shape& shape) {
    if (!scales || shape.one_hot) return nullptr;
    expect_size(name, scales->size(), shape.sizes[0]);
    return scales->data();
}

// A rule of the package by its name, or one from outside by the address of its function.
template <class Rule>
Rule find_rule(const char* kind, const NamedRule<Rule>* rules, const NativeRule& wanted) {
    const auto& [name, parameter, address] = wanted;
    if (address) return reinterpret_cast<Rule>(address);
    for (; rules->name; ++rules)
        if (name == rules->name) return rules->rule;
    fail("the native learner has no " + std::string(kind) + " rule '" + name + "'");
}

std::tuple<double, double, double> epoch(Engine& engine, Observations observations, ConstInts actions,
                                         ConstFloats rewards, ConstFloats discounts, Observations next_observations,
                                         Masks masks, Masks next_masks, ConstInts batches, ConstInts critics,
                                         std::optional<State> actor, State critic_networks, ConstFloats priors,
                                         Ints active, int critic_iterations, int fit_steps, double learning_rate,
                                         double actor_learning_rate, const NativeRule& critic_rule,
                                         const std::optional<NativeRule>& actor_rule, bool cross_entropy,
                                         double prior_scale, std::optional<ConstFloats> shift,
                                         std::optional<ConstFloats> factor, double return_shift, double return_factor) {
    const Shape& shape = engine.shape(false);
    const int64_t n = check_observations("observations", observations, shape);
    if (check_observations("next_observations", next_observations, shape) != n)
        fail("observations and next_observations must have the same length");
    if (observations.dtype() != next_observations.dtype())
        fail("observations and next_observations must have the same element type");
    expect_size("actions", actions.size(), n);
    expect_size("rewards", rewards.size(), n);
    expect_size("discounts", discounts.size(), n);
    if (batches.ndim() != 2 || batches.shape(0) != critics.size())
        fail("batches must be of shape (number of critics to train, batch size)");
    if (static_cast<int>(batches.shape(1)) > engine.batch_size() || batches.shape(1) < 1)
        fail("batch size must be 1 to " + std::to_string(engine.batch_size()) + ", got " +
             std::to_string(batches.shape(1)));
    const int n_actions = shape.sizes[shape.n_layers];
    for (size_t i = 0; i < batches.size(); ++i) {
        const int64_t index = batches.data()[i];
        if (index < 0 || index >= n)
            fail("batch index " + std::to_string(index) + " is outside the " + std::to_string(n) + " transitions");
        const int64_t action = actions.data()[index];
        if (action < 0 || action >= n_actions)
            fail("action " + std::to_string(action) + " is outside 0.." + std::to_string(n_actions - 1));
    }
    check_states("observations", observations.data(), batches.data(), batches.size(), shape);
    check_states("next_observations", next_observations.data(), batches.data(), batches.size(), shape);
    const int64_t n_critics = static_cast<int64_t>(active.size());
    for (size_t i = 0; i < critics.size(); ++i) {
        const int64_t* critic = critics.data() + i;
        if (*critic < 0 || *critic >= n_critics || std::find(critics.data(), critic, *critic) != critic)
            fail("critics must be distinct numbers from 0 to " + std::to_string(n_critics - 1));
    }
    for (int64_t i = 0; i < n_critics; ++i)
        if (active.data()[i] != 0 && active.data()[i] != 1) fail("active must hold zeros and ones");
    if (critic_iterations < 1 || fit_steps < 1) fail("critic_iterations and fit_steps must be at least 1");

    EpochArguments arguments{};
    arguments.transitions = {observations.data(),
                             next_observations.data(),
                             has_bytes(observations),
                             actions.data(),
                             rewards.data(),
                             discounts.data(),
                             check_masks("masks", masks, n, n_actions),
                             check_masks("next_masks", next_masks, n, n_actions),
                             check_scales("shift", shift, shape),
                             check_scales("factor", factor, shape),
                             static_cast<float>(return_shift),
                             static_cast<float>(return_factor)};
    if (!arguments.transitions.shift != !arguments.transitions.factor) fail("shift and factor belong together");
    arguments.batches = batches.data();
    arguments.critics = critics.data();
    arguments.n_trained = static_cast<int>(batches.shape(0));
    arguments.batch_size = static_cast<int>(batches.shape(1));
    auto& [cp, cm, cv, cs] = critic_networks;
    arguments.critics_state = network_arrays("critic", cp, cm, cv, cs, 2 * n_critics, count_parameters(shape));
    const Hyperparameters hyper{critic_iterations,
                                fit_steps,
                                learning_rate,
                                actor_learning_rate,
                                find_rule("critic", engine.kernel().critic_rules, critic_rule),
                                static_cast<float>(std::get<1>(critic_rule)),
                                actor_rule ? find_rule("actor", engine.kernel().actor_rules, *actor_rule) : nullptr,
                                actor_rule ? static_cast<float>(std::get<1>(*actor_rule)) : 0.0f,
                                cross_entropy,
                                static_cast<float>(prior_scale)};
    if (hyper.actor_rule) {
        if (!actor) fail("an actor rule needs an actor");
        auto& [ap, am, av, as] = *actor;
        arguments.actor = network_arrays("actor", ap, am, av, as, 1, count_parameters(engine.shape(true)));
    }
    if (prior_scale != 0.0) {
        expect_size("priors", priors.size(), n_critics * count_parameters(shape));
        arguments.priors = priors.data();
    }
    arguments.active = active.data();
    nb::gil_scoped_release no_gil;
    const EpochResult result = engine.epoch(arguments, hyper);
    return {result.critic_loss, result.actor_loss, result.mean_q};
}

void predict(Engine& engine, bool actor, ConstFloats parameters, Observations observations, Floats out) {
    const Shape& shape = engine.shape(actor);
    const int64_t n = check_observations("observations", observations, shape);
    if (has_bytes(observations)) fail("observations must be float32");
    check_states("observations", observations.data(), nullptr, n, shape);
    expect_size("parameters", parameters.size(), count_parameters(shape));
    expect_size("out", out.size(), n * shape.sizes[shape.n_layers]);
    nb::gil_scoped_release no_gil;
    engine.predict(actor, parameters.data(), observations.data(), n, out.data());
}

// Multiply-adds per second of n_threads threads that do nothing else.
double fma_peak(int n_threads, double seconds, const std::string& instruction_set) {
    const Kernel* kernel = nullptr;
    for (const Kernel* candidate : supported_kernels())
        if (!kernel && (instruction_set.empty() || instruction_set == candidate->name)) kernel = candidate;
    if (!kernel) fail("instruction set '" + instruction_set + "' is not supported by this processor");
    nb::gil_scoped_release no_gil;
    ThreadPool pool(n_threads);
    std::vector<double> rates(n_threads);
    pool.run([&](int worker) {
        float sink[4] = {0.999f, 0.001f, 0.0f, 0.0f};
        int64_t count = 0;
        const auto start = std::chrono::steady_clock::now();
        double elapsed = 0.0;
        while (elapsed < seconds) {
            count += kernel->fma_burst(sink);
            elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
        rates[worker] = static_cast<double>(count) / elapsed;
    });
    double total = 0.0;
    for (const double rate : rates) total += rate;
    return total;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The compiled BDPI learner; use bdpi.learner.native, which wraps it.";
    m.def("supported_instruction_sets", [] {
        std::vector<std::string> names;
        for (const Kernel* kernel : supported_kernels()) names.emplace_back(kernel->name);
        return names;
    });
    m.def("fma_peak", &fma_peak, nb::arg("n_threads"), nb::arg("seconds"), nb::arg("instruction_set") = "");
    nb::class_<Engine>(m, "Engine")
        .def(
            "__init__",
            [](Engine* self, const std::vector<int>& actor_sizes, const std::vector<int>& critic_sizes,
               const std::string& activation, bool one_hot, int batch_size, int n_critics, int n_threads,
               const std::string& instruction_set) {
                if (batch_size < 1) fail("batch_size must be at least 1, got " + std::to_string(batch_size));
                if (n_critics < 1) fail("n_critics must be at least 1, got " + std::to_string(n_critics));
                new (self) Engine(make_shape(actor_sizes, activation, one_hot),
                                  make_shape(critic_sizes, activation, one_hot), batch_size, n_critics, n_threads,
                                  instruction_set);
            },
            nb::arg("actor_sizes"), nb::arg("critic_sizes"), nb::arg("activation"), nb::arg("one_hot"),
            nb::arg("batch_size"), nb::arg("n_critics"), nb::arg("n_threads"), nb::arg("instruction_set") = "")
        .def("epoch", &epoch, nb::arg("observations"), nb::arg("actions"), nb::arg("rewards"), nb::arg("discounts"),
             nb::arg("next_observations"), nb::arg("masks").none(), nb::arg("next_masks").none(), nb::arg("batches"),
             nb::arg("critics"), nb::arg("actor").none(), nb::arg("critic_networks"), nb::arg("priors"),
             nb::arg("active"), nb::arg("critic_iterations"), nb::arg("fit_steps"), nb::arg("learning_rate"),
             nb::arg("actor_learning_rate"), nb::arg("critic_rule"), nb::arg("actor_rule").none(),
             nb::arg("cross_entropy"), nb::arg("prior_scale"), nb::arg("shift").none(),
             nb::arg("factor").none(), nb::arg("return_shift"), nb::arg("return_factor"))
        .def("predict", &predict, nb::arg("actor"), nb::arg("parameters"), nb::arg("observations"), nb::arg("out"))
        .def_prop_ro("instruction_set", [](const Engine& engine) { return std::string(engine.kernel().name); })
        .def_prop_ro("n_threads", &Engine::threads);
}
