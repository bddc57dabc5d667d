// Rules, each the twin of a Python class in this folder: one inline function, for one transition, written once for the
// CPU kernel (cpp/kernel.cpp), the CUDA kernels (fused.cu), and rules from outside the package, which come as source.
// Arrays have n_actions values; those of actions that are not allowed are minus infinity (unless no action is allowed).
// On a GPU, arrays are in registers: index them by loops over all actions, as `pick` does.
//
// A critic rule returns Q'(s, a) - Q_A(s, a) of the action that was taken:
//     RULE float name(const float *q, const float *next_a, const float *next_b, int n_actions, int action, float reward,
//                     float discount, float parameter)
// from Q_A(s, .), Q_A(s', .) and Q_B(s', .). An actor rule writes the policy that the actor is fitted to:
//     RULE void name(const float *policy, const float *q, int n_actions, float parameter, float *target)
// from pi(s, .) and the critic's last Q'(s, .).
#ifndef RULE
#ifdef __CUDACC_RTC__
#define RULE __device__ __forceinline__
#define EACH_ACTION(a) _Pragma("unroll") for (int a = 0; a < n_actions; a++)
#else
#define RULE inline
#define EACH_ACTION(a) for (int a = 0; a < n_actions; a++)
#endif
#endif

// The first of the largest values.
RULE int argmax(const float *values, int n_actions) {
    int best = 0;
    float largest = values[0];
    EACH_ACTION(a)
        if (values[a] > largest) {
            best = a;
            largest = values[a];
        }
    return best;
}

RULE float pick(const float *values, int n_actions, int action) {
    float value = values[0];
    EACH_ACTION(a) if (a == action) value = values[a];
    return value;
}

// alpha (r + discount min(Q_A(s', a*), Q_B(s', a*)) - Q_A(s, a)), where a* is what Q_A prefers   (Eq. abcdqn)
RULE float clipped_double(const float *q, const float *next_a, const float *next_b, int n_actions, int action,
                          float reward, float discount, float step_size) {
    const int best = argmax(next_a, n_actions);
    const float value_a = pick(next_a, n_actions, best), value_b = pick(next_b, n_actions, best);
    const float value = value_b < value_a ? value_b : value_a;
    return step_size * (reward + discount * value - pick(q, n_actions, action));
}

// y = (1 - lambda) pi + lambda onehot(argmax Q')   (Eq. ppi_actor)
RULE void conservative(const float *policy, const float *q, int n_actions, float rate, float *target) {
    const int best = argmax(q, n_actions);
    EACH_ACTION(a) {
        target[a] = (1.0f - rate) * policy[a];
        if (a == best) target[a] += rate;
    }
}

// y = softmax(Q' / temperature), or onehot(argmax Q') at temperature 0   (Eq. mimic)
RULE void imitation(const float *, const float *q, int n_actions, float temperature, float *target) {
    const int best = argmax(q, n_actions);
    const float largest = pick(q, n_actions, best);
    float total = 0.0f;
    EACH_ACTION(a) {
        target[a] = temperature > 0.0f ? expf((q[a] - largest) / temperature) : (a == best ? 1.0f : 0.0f);
        total += target[a];
    }
    EACH_ACTION(a) target[a] /= total;
}
