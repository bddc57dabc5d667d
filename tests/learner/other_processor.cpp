// Learns on made-up transitions, and writes all parameters and predictions as floats: the same on each processor, but
// for rounding. tests/learner/test_other_processors.py compiles it with cpp/engine.cpp and cpp/kernel.cpp.
#include <cstdio>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

#include "engine.hpp"

using namespace bdpi;

namespace {

constexpr int kTransitions = 300, kCritics = 3, kBatch = 50, kEpochs = 3;

// The same numbers everywhere, which <random> does not promise.
class Numbers {
  public:
    uint32_t below(uint32_t n) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state_ >> 33) % n;
    }
    float number() { return static_cast<float>(below(2001)) / 1000.0f - 1.0f; }
    std::vector<float> numbers(int64_t n, float scale = 1.0f) {
        std::vector<float> found(n);
        for (float& each : found) each = number() * scale;
        return found;
    }

  private:
    uint64_t state_ = 1;
};

struct Case {
    std::vector<int> sizes;
    Activation activation;
    bool one_hot, has_bytes;
    const char *actor_rule;
    float prior_scale;
    bool cross_entropy, has_masks, has_scales;
};

// Networks of one shape, and Adam's state of them.
struct Trained {
    std::vector<float> parameters, first, second;
    std::vector<int64_t> steps;
    Trained(Numbers& draw, const Shape& shape, int n)
        : parameters(draw.numbers(n * count_parameters(shape), 0.3f)),
          first(parameters.size()), second(parameters.size()), steps(n) {}
    NetworkArrays arrays() { return {parameters.data(), first.data(), second.data(), steps.data()}; }
};

void write(const std::vector<float>& values) { std::fwrite(values.data(), sizeof(float), values.size(), stdout); }

template <class Rule>
Rule rule_of(const NamedRule<Rule>* rules, const std::string& name) {
    while (rules->name && name != rules->name) ++rules;
    return rules->rule;
}

void learn(const Case& what) {
    Numbers draw;
    Shape shape{};
    shape.n_layers = static_cast<int>(what.sizes.size()) - 1;
    for (size_t i = 0; i < what.sizes.size(); ++i) shape.sizes[i] = what.sizes[i];
    shape.activation = what.activation;
    shape.one_hot = what.one_hot;
    const int n_in = what.sizes.front(), n_out = what.sizes.back();
    Engine engine(shape, shape, kBatch, kCritics, 2, "");

    const int width = what.one_hot ? 1 : n_in;
    std::vector<float> floats = draw.numbers(2 * kTransitions * width);
    std::vector<uint8_t> bytes(floats.size());
    for (uint8_t& each : bytes) each = draw.below(20) == 0;
    std::vector<int64_t> states(floats.size()), actions(kTransitions);
    for (int64_t& each : states) each = draw.below(n_in);
    for (int64_t& each : actions) each = draw.below(n_out);
    std::vector<float> rewards = draw.numbers(kTransitions), discounts(kTransitions, 0.9f);
    const auto masks = std::make_unique<bool[]>(kTransitions * n_out);
    for (int i = 0; i < kTransitions * n_out; ++i) masks[i] = draw.below(3) > 0;
    const std::vector<float> shift = draw.numbers(n_in), factor(n_in, 1.5f);
    const auto half = [&](auto& all) { return std::pair<const void*, const void*>{all.data(), all.data() + all.size() / 2}; };
    const auto [seen, next] = what.one_hot ? half(states) : what.has_bytes ? half(bytes) : half(floats);
    const bool* allowed = what.has_masks ? masks.get() : nullptr;
    const Transitions transitions{seen, next, what.has_bytes, actions.data(), rewards.data(), discounts.data(), allowed,
                                  allowed, what.has_scales ? shift.data() : nullptr,
                                  what.has_scales ? factor.data() : nullptr, 0.2f, 0.7f};

    Trained actor(draw, shape, 1), critics(draw, shape, 2 * kCritics);
    const std::vector<float> priors = draw.numbers(kCritics * count_parameters(shape));
    std::vector<int64_t> active(kCritics), batches(kCritics * kBatch), order{2, 0, 1};
    const Hyperparameters hyper{3, 4, 1e-3, 1e-3, rule_of(engine.kernel().critic_rules, "clipped_double"), 0.2f,
                                rule_of(engine.kernel().actor_rules, what.actor_rule), 0.05f, what.cross_entropy,
                                what.prior_scale};
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
        for (int64_t& each : batches) each = draw.below(kTransitions);
        const EpochResult result =
            engine.epoch({transitions, batches.data(), order.data(), kCritics, kBatch, actor.arrays(), critics.arrays(),
                          what.prior_scale != 0.0f ? priors.data() : nullptr, active.data()},
                         hyper);
        write({static_cast<float>(result.critic_loss), static_cast<float>(result.actor_loss),
               static_cast<float>(result.mean_q)});
    }
    for (const bool is_actor : {true, false}) {
        const std::vector<float>& parameters = (is_actor ? actor : critics).parameters;
        std::vector<float> said(kTransitions * n_out);
        const void* shown = what.one_hot ? static_cast<const void*>(states.data()) : floats.data();
        engine.predict(is_actor, parameters.data(), shown, kTransitions, said.data());
        write(parameters);
        write(said);
    }
}

}  // namespace

int main() {
#ifdef _WIN32
    _setmode(_fileno(stdout), _O_BINARY);
#endif
    learn({{6, 20, 3}, Activation::tanh, false, false, "conservative", 0.0f, false, false, false});
    learn({{5, 16, 24, 4}, Activation::relu, false, false, "imitation", 0.0f, true, true, true});
    learn({{40, 32, 4}, Activation::tanh, true, false, "conservative", 2.0f, false, false, false});
    learn({{17, 2}, Activation::tanh, true, false, "conservative", 0.0f, false, true, false});
    learn({{200, 30, 5}, Activation::tanh, false, true, "conservative", 0.0f, false, false, false});
    learn({{150, 30, 5}, Activation::relu, false, false, "conservative", 1.0f, false, false, true});
    std::fprintf(stderr, "%s, %d floats at once\n", supported_kernels().front()->name, supported_kernels().front()->lanes);
}
