// How the actor follows a critic: one function per rule, for one transition, and a line in the table at the end; see
// ActorRule in kernel.hpp.
// Included by kernel.cpp alone, inside its anonymous namespace: each instruction set gets its own copy.

// The first of the largest values whose action is allowed; the first action if none is.
inline int argmax(const float* values, int64_t stride, int count, const bool* mask) {
    int best = -1;
    for (int a = 0; a < count; ++a)
        if ((!mask || mask[a]) && (best < 0 || values[a * stride] > values[best * stride])) best = a;
    return best < 0 ? 0 : best;
}

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

const NamedRule kRules[] = {
    {"conservative", conservative_rule},
    {"imitation", imitation_rule},
    {nullptr, nullptr},
};
