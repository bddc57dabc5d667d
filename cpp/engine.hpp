// Runs learning epochs: owns scratch memory and threads, and decides who does what when.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernel.hpp"

namespace bdpi {

// The kernels this processor can run, best first.
const std::vector<const Kernel*>& supported_kernels();

int64_t count_parameters(const Shape& shape);

// Memory of one thread for networks of one shape: workspace, and up to two networks in training.
class Scratch {
  public:
    Scratch(const Shape& shape, int batch_size, int n_networks);
    Scratch(Scratch&&) = default;

    Workspace workspace{};
    Network networks[2]{};

  private:
    float* floats(int64_t count);
    int32_t* ints(int64_t count);
    Differences differences(int n_inputs, int64_t rows);

    std::vector<std::unique_ptr<float[]>> float_blocks_;
    std::vector<std::unique_ptr<int32_t[]>> int_blocks_;
};

// Threads that sleep between epochs. run(job) calls job(worker) once per worker, the caller being worker 0.
class ThreadPool {
  public:
    explicit ThreadPool(int n_threads);
    ~ThreadPool();
    int size() const { return n_threads_; }

    template <class Job>  // not a std::function, which would allocate
    void run(Job&& job) {
        run_erased({&job, [](void* context, int worker) { (*static_cast<Job*>(context))(worker); }});
    }

  private:
    struct ErasedJob {
        void* context;
        void (*call)(void* context, int worker);
    };
    void run_erased(ErasedJob job);
    void start();
    void work(int worker, uint64_t seen);

    const int n_threads_;
    int process_ = 0;  // threads do not survive a fork: a child process starts its own
    std::vector<std::thread> threads_;
    std::unique_ptr<std::mutex> mutex_;
    std::unique_ptr<std::condition_variable> wake_, done_;
    ErasedJob job_{};
    uint64_t round_ = 0;
    int busy_ = 0;
    bool stopping_ = false;
};

// Parameters and Adam state of several networks of one shape, in the caller's memory: [network][parameter].
struct NetworkArrays {
    float* parameters;
    float* first_moment;
    float* second_moment;
    int64_t* steps;
};

struct EpochArguments {
    Transitions transitions;
    const int64_t* batches;  // [n_trained][batch_size]: indices into the transitions
    const int64_t* critics;  // [n_trained]: which critic is trained on which batch, in the actor's order
    int n_trained;
    int batch_size;
    NetworkArrays actor;          // one network; not read where the hyper-parameters name no actor rule
    NetworkArrays critics_state;  // [n_critics][2] networks
    const float* priors;          // [n_critics] prior functions; not read where their scale is 0
    int64_t* active;              // [n_critics]: which of a critic's two networks is Q_A
};

struct EpochResult {
    double critic_loss, actor_loss, mean_q;
};

class Engine {
  public:
    Engine(const Shape& actor, const Shape& critic, int batch_size, int n_critics, int n_threads,
           const std::string& instruction_set);

    EpochResult epoch(const EpochArguments& arguments, const Hyperparameters& hyper);

    // Probabilities of an actor or Q-values of a critic for n observations, row-major [n][n_outputs].
    void predict(bool actor, const float* parameters, const void* observations, int64_t n, float* out);

    const Kernel& kernel() const { return *kernel_; }
    int threads() const { return pool_.size(); }
    int batch_size() const { return batch_size_; }
    const Shape& shape(bool actor) const { return actor ? actor_shape_ : critic_shape_; }

  private:
    Shape gather(const Shape& shape, const EpochArguments& arguments, int slot, bool with_next,
                 const NetworkArrays& arrays, std::initializer_list<int64_t> networks, Workspace& workspace);
    void train_critic(const EpochArguments& arguments, const Hyperparameters& hyper, int slot, Scratch& scratch);
    void train_actor(const EpochArguments& arguments, const Hyperparameters& hyper, int slot);
    float* q_of(int slot) {
        return q_.data() + int64_t{slot} * batch_size_ * critic_shape_.sizes[critic_shape_.n_layers];
    }

    Shape actor_shape_, critic_shape_;
    int batch_size_;
    const Kernel* kernel_;
    ThreadPool pool_;
    std::vector<Scratch> critic_scratch_;  // one per thread
    Scratch actor_scratch_;
    Scratch predict_actor_, predict_critic_;
    std::mutex predict_mutex_, epoch_mutex_;
    std::vector<float> q_;  // [n_trained][batch_size][n_actions]: the last Q' of each critic
    std::vector<FitResult> critic_results_, actor_results_;
    std::vector<std::atomic<bool>> trained_;
};

}  // namespace bdpi
