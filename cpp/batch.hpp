// From indices into the replay memory to the distinct rows that the networks are evaluated on.
// Included by kernel.cpp alone, inside its anonymous namespace: each instruction set gets its own copy.

template <class Number>
void gather_dense(const Number* observations, int n_in, const Transitions& data, const int64_t* batch, int batch_size,
                  Rows& rows) {
    rows.n = padded(batch_size);
    for (int j = 0; j < rows.n; ++j) {
        const Number* x = j < batch_size ? observations + batch[j] * n_in : nullptr;
        for (int i = 0; i < n_in; ++i) {
            const float value = x ? scaled(x, i, data) : 0.0f;
            rows.inputs[int64_t{i} * rows.n + j] = value;
        }
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

template <class Number>
Shape gather_numbers(Shape shape, const Transitions& data, const int64_t* batch, int batch_size, bool with_next,
                     Workspace& workspace) {
    const auto* seen = static_cast<const Number*>(data.observations);
    const auto* next = with_next ? static_cast<const Number*>(data.next_observations) : nullptr;
    if (has_many_inputs(shape)) return gather_many(shape, seen, next, data, batch, batch_size, workspace);
    if (next) gather_dense(next, shape.sizes[0], data, batch, batch_size, workspace.next_rows);
    gather_dense(seen, shape.sizes[0], data, batch, batch_size, workspace.rows);
    return shape;
}

Shape gather(const Shape& shape, const Transitions& data, const int64_t* batch, int batch_size, bool with_next,
             Workspace& workspace) {
    const FlushDenormals scope;
    if (!shape.one_hot) {
        const auto numbers = data.has_bytes ? gather_numbers<uint8_t> : gather_numbers<float>;
        return numbers(shape, data, batch, batch_size, with_next, workspace);
    }
    const auto states = [&](const void* observations, Rows& rows) {
        gather_one_hot(static_cast<const int64_t*>(observations), shape.sizes[0], batch, batch_size,
                       workspace.state_to_row, rows);
    };
    if (with_next) states(data.next_observations, workspace.next_rows);
    states(data.observations, workspace.rows);
    return shape;
}

void clear_gradient(const Shape& shape, Workspace& workspace) {
    const int64_t n = layer_offset(shape, shape.n_layers);
    for (int64_t i = 0; i < n + kMaxLanes; ++i) workspace.gradient[i] = 0.0f;
}
