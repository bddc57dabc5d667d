// Adam, and the fit of a network to a table of targets.
// Included by kernel.cpp alone, inside its anonymous namespace: each instruction set gets its own copy.

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
