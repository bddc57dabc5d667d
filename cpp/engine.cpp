#include "engine.hpp"

#if defined(BDPI_X86_KERNELS)
#include "processor.hpp"
#endif

#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace bdpi {

extern const Kernel kernel_baseline;
#if defined(BDPI_X86_KERNELS)
extern const Kernel kernel_avx2;
extern const Kernel kernel_avx512;
#endif

const std::vector<const Kernel*>& supported_kernels() {
    static const std::vector<const Kernel*> kernels = [] {
        std::vector<const Kernel*> found;
#if defined(BDPI_X86_KERNELS)
        const Processor processor = this_processor();
        if (processor.has_avx512()) found.push_back(&kernel_avx512);
        if (processor.has_avx2()) found.push_back(&kernel_avx2);
#endif
        found.push_back(&kernel_baseline);
        return found;
    }();
    return kernels;
}

namespace {

const Kernel* find_kernel(const std::string& name) {
    for (const Kernel* kernel : supported_kernels())
        if (name.empty() || name == kernel->name) return kernel;
    std::string names;
    for (const Kernel* kernel : supported_kernels()) names += std::string(names.empty() ? "" : ", ") + kernel->name;
    throw std::invalid_argument("instruction set '" + name + "' is not supported by this processor; choose one of: " +
                                names);
}

}  // namespace

int64_t count_parameters(const Shape& shape) {
    int64_t count = 0;
    for (int layer = 0; layer < shape.n_layers; ++layer)
        count += int64_t{shape.sizes[layer] + 1} * shape.sizes[layer + 1];
    return count;
}

// -------------------------------------------------------------------------------------------------------------------

float* Scratch::floats(int64_t count) {
    float_blocks_.emplace_back(new float[count + kMaxLanes]());
    auto address = reinterpret_cast<uintptr_t>(float_blocks_.back().get());
    return reinterpret_cast<float*>((address + 63) / 64 * 64);  // whole cache lines
}

int32_t* Scratch::ints(int64_t count) {
    int_blocks_.emplace_back(new int32_t[count]());
    return int_blocks_.back().get();
}

Differences Scratch::differences(int n_inputs, int64_t rows) {
    const int64_t capacity = n_inputs * rows / 4 + rows;
    return {floats(n_inputs),   ints(n_inputs + 1), ints(rows + 1),   ints(capacity),
            ints(capacity),     floats(capacity),   floats(capacity), capacity};
}

Scratch::Scratch(const Shape& shape, int batch_size, int n_networks) {
    const int64_t rows = (batch_size + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
    const int64_t outputs = shape.sizes[shape.n_layers] * rows;
    const int64_t parameters = count_parameters(shape) + kMaxLanes;
    for (Rows* part : {&workspace.rows, &workspace.next_rows}) {
        part->inputs = shape.one_hot ? nullptr : floats(shape.sizes[0] * rows);
        part->states_memory = ints(rows);
        part->weight = floats(rows);
        part->row_of = ints(rows);
        if (has_many_inputs(shape)) part->differences = differences(shape.sizes[0], rows);
    }
    if (has_many_inputs(shape)) {
        workspace.columns = {0, ints(shape.sizes[0]), ints(shape.sizes[0])};
        workspace.row_table = ints(kRowTable * rows);
        workspace.delta_by_row = floats(rows * (shape.sizes[1] + kMaxLanes));
    }
    for (int layer = 0; layer + 1 < shape.n_layers; ++layer)
        workspace.hidden[layer] = floats(shape.sizes[layer + 1] * rows);
    for (float** array : {&workspace.output, &workspace.output_gradient, &workspace.target, &workspace.next_a,
                          &workspace.next_b, &workspace.prior, &workspace.next_prior, &workspace.prior_sum})
        *array = floats(outputs);
    for (float*& values : workspace.action_values) values = floats(shape.sizes[shape.n_layers]);
    workspace.gradient = floats(parameters);
    workspace.prior_parameters = n_networks > 1 ? floats(parameters) : nullptr;
    workspace.state_to_row = shape.one_hot ? ints(shape.sizes[0]) : nullptr;
    for (int i = 0; i < n_networks; ++i)
        networks[i] = {floats(parameters), floats(parameters), floats(parameters), 0};
}

// -------------------------------------------------------------------------------------------------------------------

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads) {
    if (n_threads < 1) throw std::invalid_argument("n_threads must be at least 1, got " + std::to_string(n_threads));
}

void ThreadPool::start() {
    if (process_ == getpid()) return;
    if (process_ != 0) {
        // After a fork: the parent's threads do not exist here and its locks may be held for ever. Leave them alone.
        for (auto& thread : threads_) thread.detach();
        (void)mutex_.release(), (void)wake_.release(), (void)done_.release();
        threads_.clear();
    }
    process_ = getpid();
    mutex_ = std::make_unique<std::mutex>();
    wake_ = std::make_unique<std::condition_variable>();
    done_ = std::make_unique<std::condition_variable>();
    for (int worker = 1; worker < n_threads_; ++worker)
        threads_.emplace_back([this, worker, seen = round_] { work(worker, seen); });
}

ThreadPool::~ThreadPool() {
    if (process_ == 0) return;
    if (process_ != getpid()) {
        for (auto& thread : threads_) thread.detach();
        (void)mutex_.release(), (void)wake_.release(), (void)done_.release();
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(*mutex_);
        stopping_ = true;
    }
    wake_->notify_all();
    for (auto& thread : threads_) thread.join();
}

void ThreadPool::work(int worker, uint64_t seen) {
    for (;;) {
        std::unique_lock<std::mutex> lock(*mutex_);
        wake_->wait(lock, [&] { return stopping_ || round_ != seen; });
        if (stopping_) return;
        seen = round_;
        lock.unlock();
        job_.call(job_.context, worker);
        lock.lock();
        if (--busy_ == 0) done_->notify_one();
    }
}

void ThreadPool::run_erased(ErasedJob job) {
    if (n_threads_ == 1) return job.call(job.context, 0);
    start();
    {
        const std::lock_guard<std::mutex> lock(*mutex_);
        job_ = job;
        busy_ = n_threads_ - 1;
        ++round_;
    }
    wake_->notify_all();
    job.call(job.context, 0);
    std::unique_lock<std::mutex> lock(*mutex_);
    done_->wait(lock, [&] { return busy_ == 0; });
}

// -------------------------------------------------------------------------------------------------------------------

Engine::Engine(const Shape& actor, const Shape& critic, int batch_size, int n_critics, int n_threads,
               const std::string& instruction_set)
    : actor_shape_(actor),
      critic_shape_(critic),
      batch_size_(batch_size),
      kernel_(find_kernel(instruction_set)),
      pool_(n_threads),
      actor_scratch_(actor, batch_size, 1),
      predict_actor_(actor, batch_size, 0),
      predict_critic_(critic, batch_size, 0),
      q_(static_cast<size_t>(n_critics) * batch_size * critic.sizes[critic.n_layers]),
      critic_results_(n_critics),
      actor_results_(n_critics),
      trained_(n_critics) {
    if (actor.sizes[0] != critic.sizes[0] || actor.sizes[actor.n_layers] != critic.sizes[critic.n_layers])
        throw std::invalid_argument("actor and critics must have as many inputs, and as many outputs: the actor has " +
                                    std::to_string(actor.sizes[0]) + " and " +
                                    std::to_string(actor.sizes[actor.n_layers]) + ", a critic " +
                                    std::to_string(critic.sizes[0]) + " and " +
                                    std::to_string(critic.sizes[critic.n_layers]));
    for (int thread = 0; thread < n_threads; ++thread) critic_scratch_.emplace_back(critic, batch_size, 2);
}

namespace {

// Copies what is trained of a network's numbers, `whole`, to the memory that it is trained in, or back.
template <bool saves>
void exchange(const Shape& shape, const Shape& trained, const Columns& columns,
              std::conditional_t<saves, float*, const float*> whole, std::conditional_t<saves, const float*, float*> part) {
    const auto copy = [](auto* from_whole, auto* from_part, int64_t n) {
        if constexpr (saves) {
            std::memcpy(from_whole, from_part, n * sizeof(float));
        } else {
            std::memcpy(from_part, from_whole, n * sizeof(float));
        }
    };
    const int64_t size = count_parameters(shape);
    const bool is_same = !trained.sparse && trained.sizes[0] == shape.sizes[0];
    if (is_same) return copy(whole, part, size);
    const int n_in = shape.sizes[0], n_units = shape.sizes[1];
    const int64_t unit_step = trained.sparse ? 1 : columns.n, column_step = trained.sparse ? n_units : 1;
    for (int unit = 0; unit < n_units; ++unit, whole += n_in)
        for (int c = 0; c < columns.n; ++c)
            copy(whole + columns.indices[c], part + unit * unit_step + c * column_step, 1);
    copy(whole, part + int64_t{columns.n} * n_units, size - int64_t{n_in} * n_units);
}

void load_network(const Shape& shape, const Shape& trained, const Columns& columns, const NetworkArrays& arrays,
                  int64_t index, Network& network) {
    const int64_t start = index * count_parameters(shape);
    exchange<false>(shape, trained, columns, arrays.parameters + start, network.parameters);
    exchange<false>(shape, trained, columns, arrays.first_moment + start, network.first_moment);
    exchange<false>(shape, trained, columns, arrays.second_moment + start, network.second_moment);
    network.steps = arrays.steps[index];
}

void save_network(const Shape& shape, const Shape& trained, const Columns& columns, const Network& network,
                  const NetworkArrays& arrays, int64_t index) {
    const int64_t start = index * count_parameters(shape);
    exchange<true>(shape, trained, columns, arrays.parameters + start, network.parameters);
    exchange<true>(shape, trained, columns, arrays.first_moment + start, network.first_moment);
    exchange<true>(shape, trained, columns, arrays.second_moment + start, network.second_moment);
    arrays.steps[index] = network.steps;
}

// Inputs whose weights still move without a gradient.
void mark_moments(const Shape& shape, const NetworkArrays& arrays, int64_t index, int32_t* is_used) {
    const int64_t start = index * count_parameters(shape);
    for (int unit = 0; unit < shape.sizes[1]; ++unit) {
        const float* first = arrays.first_moment + start + int64_t{unit} * shape.sizes[0];
        const float* second = arrays.second_moment + start + int64_t{unit} * shape.sizes[0];
        for (int i = 0; i < shape.sizes[0]; ++i) is_used[i] |= (first[i] != 0.0f) | (second[i] != 0.0f);
    }
}

}  // namespace

// Lays a batch out for the training of some networks; returns their shape.
Shape Engine::gather(const Shape& shape, const EpochArguments& arguments, int slot, bool with_next,
                     const NetworkArrays& arrays, std::initializer_list<int64_t> networks, Workspace& workspace) {
    if (has_many_inputs(shape)) {
        std::fill_n(workspace.columns.is_used, shape.sizes[0], 0);
        for (const int64_t network : networks) mark_moments(shape, arrays, network, workspace.columns.is_used);
    }
    return kernel_->gather(shape, arguments.transitions, arguments.batches + int64_t{slot} * arguments.batch_size,
                           arguments.batch_size, with_next, workspace);
}

void Engine::train_critic(const EpochArguments& arguments, const Hyperparameters& hyper, int slot, Scratch& scratch) {
    const Shape& shape = critic_shape_;
    const int64_t critic = arguments.critics[slot];
    const int64_t a = 2 * critic + arguments.active[critic], b = 2 * critic + 1 - arguments.active[critic];
    const NetworkArrays& arrays = arguments.critics_state;
    Workspace& workspace = scratch.workspace;
    const Columns& columns = workspace.columns;
    const Shape trained = gather(shape, arguments, slot, true, arrays, {a, b}, workspace);
    load_network(shape, trained, columns, arrays, a, scratch.networks[0]);
    load_network(shape, trained, columns, arrays, b, scratch.networks[1]);
    if (arguments.priors)
        exchange<false>(shape, trained, columns, arguments.priors + critic * count_parameters(shape), workspace.prior_parameters);
    critic_results_[slot] = kernel_->train_critic(
        trained, hyper, arguments.transitions, arguments.batches + int64_t{slot} * arguments.batch_size,
        arguments.batch_size, workspace.prior_parameters, scratch.networks[0], scratch.networks[1], q_of(slot), workspace);
    save_network(shape, trained, columns, scratch.networks[0], arrays, a);
    save_network(shape, trained, columns, scratch.networks[1], arrays, b);
    arguments.active[critic] = (arguments.active[critic] + hyper.critic_iterations) % 2;
}

void Engine::train_actor(const EpochArguments& arguments, const Hyperparameters& hyper, int slot) {
    Workspace& workspace = actor_scratch_.workspace;
    Network& actor = actor_scratch_.networks[0];
    const Shape trained = gather(actor_shape_, arguments, slot, false, arguments.actor, {0}, workspace);
    load_network(actor_shape_, trained, workspace.columns, arguments.actor, 0, actor);
    actor_results_[slot] =
        kernel_->train_actor(trained, hyper, arguments.batch_size, actor, q_of(slot), workspace);
    save_network(actor_shape_, trained, workspace.columns, actor, arguments.actor, 0);
}

// Critics are independent of each other and of the actor: any thread takes the next one. The actor follows the
// critics in their order, one at a time, so that its result does not depend on the number of threads: whoever is free
// makes its next step as soon as the critic of that step is done.
EpochResult Engine::epoch(const EpochArguments& arguments, const Hyperparameters& hyper) {
    const std::unique_lock<std::mutex> alone(epoch_mutex_, std::try_to_lock);
    if (!alone) throw std::runtime_error("this learner makes an epoch already, in another thread: wait for that one");
    const bool has_actor = hyper.actor_rule != nullptr;
    const int n = arguments.n_trained;
    for (int slot = 0; slot < n; ++slot) trained_[slot].store(false, std::memory_order_relaxed);

    std::atomic<int> next_critic{0}, next_actor{has_actor ? 0 : n};
    std::atomic<bool> actor_busy{false};
    const auto try_actor = [&] {
        if (actor_busy.exchange(true, std::memory_order_acquire)) return false;
        const int slot = next_actor.load(std::memory_order_relaxed);
        const bool ready = slot < n && trained_[slot].load(std::memory_order_acquire);
        if (ready) {
            train_actor(arguments, hyper, slot);
            next_actor.store(slot + 1, std::memory_order_relaxed);
        }
        actor_busy.store(false, std::memory_order_release);
        return ready;
    };
    pool_.run([&](int worker) {
        for (;;) {
            if (try_actor()) continue;
            const int slot = next_critic.fetch_add(1, std::memory_order_relaxed);
            if (slot < n) {
                train_critic(arguments, hyper, slot, critic_scratch_[worker]);
                trained_[slot].store(true, std::memory_order_release);
            } else if (next_actor.load(std::memory_order_relaxed) >= n) {
                return;
            } else {
                std::this_thread::yield();
            }
        }
    });

    EpochResult result{};
    for (int slot = 0; slot < n; ++slot) {
        result.critic_loss += critic_results_[slot].loss / n;
        result.mean_q += critic_results_[slot].mean_q / n;
        if (has_actor) result.actor_loss += actor_results_[slot].loss / n;
    }
    return result;
}

void Engine::predict(bool actor, const float* parameters, const void* observations, int64_t n, float* out) {
    const std::lock_guard<std::mutex> lock(predict_mutex_);
    const Shape& shape = actor ? actor_shape_ : critic_shape_;
    Workspace& workspace = (actor ? predict_actor_ : predict_critic_).workspace;
    Rows& rows = workspace.rows;
    const int n_in = shape.sizes[0], n_out = shape.sizes[shape.n_layers];
    for (int64_t first = 0; first < n; first += batch_size_) {
        const int count = static_cast<int>(std::min<int64_t>(batch_size_, n - first));
        rows.n = (count + kernel_->lanes - 1) / kernel_->lanes * kernel_->lanes;
        rows.states = rows.states_memory;
        for (int row = 0; row < rows.n; ++row) {
            const int64_t source = first + std::min(row, count - 1);
            if (shape.one_hot) {
                rows.states_memory[row] = static_cast<int32_t>(static_cast<const int64_t*>(observations)[source]);
            } else {
                const float* x = static_cast<const float*>(observations) + source * n_in;
                for (int i = 0; i < n_in; ++i) rows.inputs[int64_t{i} * rows.n + row] = x[i];
            }
        }
        kernel_->predict(shape, parameters, rows, actor, workspace);
        for (int row = 0; row < count; ++row)
            for (int a = 0; a < n_out; ++a)
                out[(first + row) * n_out + a] = workspace.output[int64_t{a} * rows.n + row];
    }
}

}  // namespace bdpi
