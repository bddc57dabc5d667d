// Many inputs, of which a batch needs few.
//
// MiniGrid's flat observations have 2,835 numbers, MinAtar's pictures 400 to 1,000. Most are the same in all that was
// ever seen, the others have few values, and many rows of a batch are equal. So a network is trained on the distinct
// rows; without the inputs that are zero in all of them and have no moments, whose weights Adam leaves as they are; and,
// where most of the rest is what it is in most rows, from the differences to that.
// Included by kernel.cpp alone, inside its anonymous namespace: each instruction set gets its own copy.

#define BDPI_RESTRICT __restrict__
constexpr int kSparse = 4;  // differences are worth it where they are at most one in so many inputs

template <class Number>
inline float scaled(const Number* x, int i, const Transitions& data) {
    const float value = static_cast<float>(x[i]);
    return data.shift ? (value - data.shift[i]) * data.factor[i] : value;
}

// Four sums at once, since a multiplication takes longer than reading.
inline uint64_t hash_of(const void* bytes, size_t size) {
    constexpr uint64_t factor = 0x9E3779B97F4A7C15;
    const char* p = static_cast<const char*>(bytes);
    uint64_t words[4], sums[4] = {1, 2, 3, 4};
    const auto add = [&] { BDPI_UNROLL for (int i = 0; i < 4; ++i) sums[i] = (sums[i] ^ words[i]) * factor; };
    for (; size >= sizeof words; p += sizeof words, size -= sizeof words) {
        std::memcpy(words, p, sizeof words);
        add();
    }
    std::memset(words, 0, sizeof words);
    std::memcpy(words, p, size);
    add();
    uint64_t hash = 0;
    for (const uint64_t sum : sums) hash = (hash ^ (sum >> 29)) * factor;
    return hash ^ (hash >> 32);
}

// Fills in everything but the inputs; rows.states_memory says which transition a row is.
template <class Number>
void find_distinct_rows(const Number* observations, int n_in, const int64_t* batch, int batch_size, int32_t* table,
                        Rows& rows) {
    const uint64_t places = static_cast<uint64_t>(kRowTable) * batch_size;
    const float share = 1.0f / static_cast<float>(batch_size);
    const size_t size = n_in * sizeof(Number);
    for (uint64_t place = 0; place < places; ++place) table[place] = -1;
    int count = 0;
    for (int j = 0; j < batch_size; ++j) {
        const Number* x = observations + batch[j] * n_in;
        uint64_t place = hash_of(x, size) % places;
        while (table[place] >= 0 && std::memcmp(x, observations + batch[rows.states_memory[table[place]]] * n_in, size))
            place = (place + 1) % places;
        if (table[place] < 0) {
            rows.weight[count] = 0.0f;
            rows.states_memory[count] = j;
            table[place] = count++;
        }
        rows.row_of[j] = table[place];
        rows.weight[table[place]] += share;
    }
    rows.n = padded(count);
    for (int row = count; row < rows.n; ++row) rows.weight[row] = 0.0f;
}

inline int count_distinct(const Rows& rows) {
    int count = rows.n;
    while (count > 0 && rows.weight[count - 1] == 0.0f) --count;
    return count;
}

template <class Number>
void mark_columns(const Number* observations, int n_in, const Transitions& data, const int64_t* batch, const Rows& rows,
                  int32_t* BDPI_RESTRICT is_used) {
    const float *shift = data.shift, *factor = data.factor;
    for (int row = count_distinct(rows) - 1; row >= 0; --row) {
        const Number* BDPI_RESTRICT x = observations + batch[rows.states_memory[row]] * n_in;
        if (shift) {
            for (int i = 0; i < n_in; ++i) is_used[i] |= (static_cast<float>(x[i]) - shift[i]) * factor[i] != 0.0f;
        } else {
            for (int i = 0; i < n_in; ++i) is_used[i] |= x[i] != 0;
        }
    }
}

template <class Number>
void gather_columns(const Number* observations, int n_in, const Transitions& data, const int64_t* batch,
                    const Columns& columns, Rows& rows) {
    for (int row = 0; row < rows.n; ++row) {
        const Number* x = rows.weight[row] > 0.0f ? observations + batch[rows.states_memory[row]] * n_in : nullptr;
        for (int c = 0; c < columns.n; ++c)
            rows.inputs[int64_t{c} * rows.n + row] = x ? scaled(x, columns.indices[c], data) : 0.0f;
    }
}

inline int count_equal(const float* x, int n, float value) {
    int count = 0;
    for (int row = 0; row < n; ++row) count += x[row] == value;
    return count;
}

// The value that most of these have, if there are two; else one that some have.
inline float usual_value(const float* x, int n) {
    const int count = count_equal(x, n, x[0]);
    if (2 * count >= n) return x[0];
    int other = 0;
    while (x[other] == x[0]) ++other;
    return count_equal(x, n, x[other]) > count ? x[other] : x[0];
}

// Differences by columns; false: there are too many.
bool find_differences(int n_in, Rows& rows) {
    Differences& found = rows.differences;
    const int count_rows = count_distinct(rows);
    int32_t count = 0;
    for (int i = 0; i < n_in; ++i) {
        const float* x = rows.inputs + int64_t{i} * rows.n;
        const float usual = found.usual[i] = usual_value(x, count_rows);
        found.column_starts[i] = count;
        if (count + count_rows > found.capacity) return false;
        for (int row = 0; row < count_rows; ++row) {
            found.rows_in_column[count] = row;
            found.values_in_column[count] = x[row] - usual;
            count += x[row] != usual;
        }
    }
    found.column_starts[n_in] = count;
    return int64_t{count} * kSparse <= int64_t{n_in} * count_rows;
}

// The same differences by rows. Both orders say where the other's numbers are: of a column, and of a row's deltas.
void sort_by_rows(int n_in, int n_units, Rows& rows) {
    Differences& found = rows.differences;
    int32_t* starts = found.row_starts;
    for (int row = 0; row <= rows.n; ++row) starts[row] = 0;
    for (int32_t d = 0; d < found.column_starts[n_in]; ++d) ++starts[found.rows_in_column[d] + 1];
    for (int row = 0; row < rows.n; ++row) starts[row + 1] += starts[row];
    for (int i = 0; i < n_in; ++i) {
        for (int32_t d = found.column_starts[i]; d < found.column_starts[i + 1]; ++d) {
            const int32_t place = starts[found.rows_in_column[d]]++;
            found.columns_in_row[place] = i * n_units;
            found.values_in_row[place] = found.values_in_column[d];
            found.rows_in_column[d] *= padded(n_units);
        }
    }
    for (int row = rows.n; row > 0; --row) starts[row] = starts[row - 1];  // each had moved to where the next begins
    starts[0] = 0;
}

// Both states and next states, or states alone: networks see the same columns in both.
template <class Number>
Shape gather_many(Shape shape, const Number* seen, const Number* next, const Transitions& data, const int64_t* batch,
                  int batch_size, Workspace& workspace) {
    const int n_in = shape.sizes[0];
    Columns& columns = workspace.columns;
    const struct { const Number* observations; Rows& rows; } parts[] = {{seen, workspace.rows}, {next, workspace.next_rows}};
    const int n_parts = next ? 2 : 1;
    for (int p = 0; p < n_parts; ++p) {
        find_distinct_rows(parts[p].observations, n_in, batch, batch_size, workspace.row_table, parts[p].rows);
        mark_columns(parts[p].observations, n_in, data, batch, parts[p].rows, columns.is_used);
    }
    columns.n = 0;
    for (int i = 0; i < n_in; ++i)
        if (columns.is_used[i]) columns.indices[columns.n++] = i;
    shape.sizes[0] = columns.n;
    shape.sparse = true;
    for (int p = 0; p < n_parts; ++p) {
        gather_columns(parts[p].observations, n_in, data, batch, columns, parts[p].rows);
        shape.sparse = shape.sparse && find_differences(columns.n, parts[p].rows);
    }
    for (int p = 0; p < n_parts && shape.sparse; ++p) sort_by_rows(columns.n, shape.sizes[1], parts[p].rows);
    return shape;
}
