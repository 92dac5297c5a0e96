#include "backend/parallel_backend.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "backend/profiling.h"
#include "base/error.h"

namespace moesaic {
namespace {

// An op as it was given. logits: empty but on rank 0.
using Call = std::function<void(Backend& rank, std::span<float> logits)>;

// Kept by the ranks that work on it, since one that hangs may come back later.
struct Step {
  Batch batch;
  std::vector<Call> calls;
  std::vector<float> logits;  // rank 0 fills them
};

Status run_step(Backend& rank, const Step& step, std::span<float> logits) {
  RETURN_IF_ERROR(rank.begin_step(step.batch));
  do {
    for (const Call& call : step.calls) call(rank, logits);
  } while (rank.ops_again());
  return rank.end_step();
}

using Job = std::function<Status(int rank, Backend& backend)>;

// The threads and the driver share it.
struct Ranks {
  std::vector<std::unique_ptr<Backend>> backends;
  std::shared_ptr<Exchange> exchange;
  std::mutex mutex;
  std::condition_variable posted, changed;
  std::shared_ptr<const Job> job;
  uint64_t jobs = 0;
  size_t running = 0, failed = 0;
  bool over = false;
  std::vector<ThreadPlan::Node> nodes;  // by rank, or none
};

// False if the job failed; the exchange has its error then. The error for lack of memory needs none itself.
bool run_job(const Job& job, int rank, Ranks& ranks) {
  const auto told = [&](const Status& status) {
    if (!status.ok()) ranks.exchange->fail(status);
    return status.ok();
  };
  try {
    try {
      return told(job(rank, *ranks.backends[static_cast<size_t>(rank)]));
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      return told(error(StatusCode::kInternal, "rank {}: {}", rank, e.what()));
    }
  } catch (const std::bad_alloc&) {
    return told({StatusCode::kOutOfMemory, "out of memory"});
  }
}

void work(const std::shared_ptr<Ranks>& ranks, int rank) {
  if (!ranks->nodes.empty()) stay_on(ranks->nodes[static_cast<size_t>(rank)]);
  uint64_t seen = 0;
  std::unique_lock lock(ranks->mutex);
  while (true) {
    ranks->posted.wait(lock, [&] { return ranks->over || ranks->jobs != seen; });
    if (ranks->over) return;
    seen = ranks->jobs;
    std::shared_ptr<const Job> job = ranks->job;
    lock.unlock();
    const bool done = run_job(*job, rank, *ranks);
    job.reset();
    lock.lock();
    --ranks->running, ranks->failed += done ? 0 : 1;
    ranks->changed.notify_all();
  }
}

// Each layer's experts are converted once, for the ranks one after the other.
class SharedConversion {
 public:
  using Convert = std::function<Result<ConvertedExperts>(int layer)>;
  SharedConversion(Convert convert, size_t ranks) : convert_(std::move(convert)), ranks_(ranks) {}

  Result<ConvertedExperts> operator()(int layer) {
    const std::scoped_lock lock(mutex_);
    auto at = made_.find(layer);
    if (at == made_.end()) {
      ASSIGN_OR_RETURN(ConvertedExperts experts, convert_(layer));
      at = made_.emplace(layer, Made{std::move(experts), ranks_}).first;
    }
    ConvertedExperts experts = at->second.experts;
    if (--at->second.left == 0) made_.erase(at);
    return experts;
  }

 private:
  struct Made {
    ConvertedExperts experts;
    size_t left;
  };
  const Convert convert_;
  const size_t ranks_;
  std::mutex mutex_;
  std::map<int, Made> made_;
};

// The parts of the ranks stand one behind the other, each with all layers.
class RanksKvCopier final : public KvCopier {
 public:
  struct Part {
    std::unique_ptr<KvCopier> copier;
    size_t page_bytes;
  };
  explicit RanksKvCopier(std::vector<Part> parts) : parts_(std::move(parts)) {}
  Status read(std::span<const int> layers, int32_t page, std::span<std::byte> bytes) override {
    return each(layers, bytes, [&](KvCopier& rank, auto part) { return rank.read(layers, page, part); });
  }
  Status write(std::span<const int> layers, int32_t page, std::span<const std::byte> bytes) override {
    return each(layers, bytes, [&](KvCopier& rank, auto part) { return rank.write(layers, page, part); });
  }

 private:
  template <typename Bytes, typename Copy>
  Status each(std::span<const int> layers, Bytes bytes, const Copy& copy) {
    for (const Part& part : parts_) {
      const size_t size = layers.size() * part.page_bytes;
      RETURN_IF_ERROR(copy(*part.copier, bytes.first(size)));
      bytes = bytes.subspan(size);
    }
    return {};
  }
  std::vector<Part> parts_;
};

// The first rank measures for all of them; the ops of the last step are those of every rank that measured.
class RanksProfiler final : public Profiler {
 public:
  // ranks: none is null.
  explicit RanksProfiler(std::vector<Profiler*> ranks) : ranks_(std::move(ranks)) {}
  std::vector<OpProfile> profile() const override { return ranks_[0]->profile(); }
  void reset_profile() override { ranks_[0]->reset_profile(); }
  void time_ops(bool on) override { ranks_[0]->time_ops(on); }
  std::vector<OpSpan> last_step() const override {
    std::vector<OpSpan> spans;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (OpSpan& span : ranks_[rank]->last_step()) {
        span.rank = static_cast<int>(rank);
        spans.push_back(std::move(span));
      }
    }
    return spans;
  }
  double read_bandwidth() override { return ranks_[0]->read_bandwidth(); }
  double multiply_rate() override { return ranks_[0]->multiply_rate(); }
  std::vector<KernelChoice> kernel_choices(int tokens) override { return ranks_[0]->kernel_choices(tokens); }

 private:
  std::vector<Profiler*> ranks_;
};

class ParallelBackend final : public Backend {
 public:
  ParallelBackend(std::vector<std::unique_ptr<Backend>> backends, std::shared_ptr<Exchange> exchange,
                  const RankManner& manner)
      : limit_(manner.limit), together_(manner.together) {
    ranks_->backends = std::move(backends), ranks_->exchange = std::move(exchange);
    ranks_->nodes = manner.nodes;
    std::vector<Profiler*> profilers;
    for (const auto& rank : ranks_->backends) profilers.push_back(rank->profiler());
    if (std::ranges::count(profilers, nullptr) == 0) profiler_.emplace(std::move(profilers));
  }
  ~ParallelBackend() override;
  // Throws where the system gives no thread; the destructor then ends those that there are.
  void start() {
    for (size_t rank = 0; rank < count(); ++rank) threads_.emplace_back(work, ranks_, static_cast<int>(rank));
  }

  BackendCaps caps() const override;
  DeviceInfo device() const override;
  std::vector<std::string> describe() const override { return first().describe(); }
  double kv_token_bytes(const ModelConfig& config) const override;
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& weights,
                                 const KvLayout& layout) override;
  double available_memory() const override;
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& progress) override;
  Status alloc_kv(const KvLayout& layout) override;
  std::string kv_page_format() const override;
  size_t kv_page_bytes() const override;
  Status read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) override;
  Status write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) override;
  std::unique_ptr<KvCopier> kv_copier() override;
  Status begin_step(const Batch& batch) override;
  void embed() override {
    note([](Backend& rank, auto) { rank.embed(); });
  }
  void qkv(int layer) override {
    note([=](Backend& rank, auto) { rank.qkv(layer); });
  }
  void attend(int layer) override {
    note([=](Backend& rank, auto) { rank.attend(layer); });
  }
  void project(int layer) override {
    note([=](Backend& rank, auto) { rank.project(layer); });
  }
  void moe(int layer) override {
    note([=](Backend& rank, auto) { rank.moe(layer); });
  }
  void unembed(std::span<float> logits) override;
  bool can_sample() const override { return first().can_sample(); }
  bool can_edit() const override { return first().can_edit(); }
  StepCaptures captures() const override { return first().captures(); }
  Status sampled(std::span<SampledToken> tokens, std::span<float> logits) override;
  Status forget_steps() override;
  Status edit_rows(std::span<const EditedRow> rows) override;
  Status end_step() override;
  Profiler* profiler() override { return profiler_ ? &*profiler_ : nullptr; }

 private:
  size_t count() const { return ranks_->backends.size(); }
  Backend& first() const { return *ranks_->backends[0]; }
  void note(Call call) { step_->calls.push_back(std::move(call)); }
  bool on_host() const;
  // limit: seconds that a rank waits for another.
  std::unique_lock<std::mutex> post(Job job, double limit);
  // Runs it on every rank. The error of the first that fails.
  Status run(Job job);
  // The same of a job that owns what it uses: who does not come back is left behind.
  Status run_within_limit(Job job);
  template <typename Bytes, typename Copy>
  Status each_part(Bytes bytes, const Copy& copy);

  const double limit_;
  const bool together_;
  std::shared_ptr<Ranks> ranks_ = std::make_shared<Ranks>();
  std::optional<RanksProfiler> profiler_;
  std::vector<std::thread> threads_;
  Status lost_;
  std::shared_ptr<Step> step_;
  std::span<float> logits_;
};

ParallelBackend::~ParallelBackend() {
  bool idle = false;
  {
    const std::scoped_lock lock(ranks_->mutex);
    ranks_->over = true, idle = ranks_->running == 0;
    ranks_->posted.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (idle)
      thread.join();
    else
      thread.detach();  // one may never end; it owns what it may still touch
  }
}

std::unique_lock<std::mutex> ParallelBackend::post(Job job, double limit) {
  ranks_->exchange->reset(limit);
  std::unique_lock lock(ranks_->mutex);
  ranks_->job = std::make_shared<const Job>(std::move(job));
  ranks_->running = count(), ranks_->failed = 0, ++ranks_->jobs;
  ranks_->posted.notify_all();
  return lock;
}

Status ParallelBackend::run(Job job) {
  RETURN_IF_ERROR(lost_);
  auto lock = post(std::move(job), limit_);
  ranks_->changed.wait(lock, [&] { return ranks_->running == 0; });
  return ranks_->exchange->failure();
}

Status ParallelBackend::run_within_limit(Job job) {
  constexpr double kGrace = 1;  // for those that are on their way
  RETURN_IF_ERROR(lost_);
  auto lock = post(std::move(job), limit_);
  ranks_->changed.wait(lock, [&] { return ranks_->running < count(); });
  const double limit = ranks_->exchange->failure().ok() ? limit_ + kGrace : kGrace;
  const bool all = wait_patiently(ranks_->changed, lock, limit, [&] { return ranks_->running == 0; });
  Status failure = ranks_->exchange->failure();
  if (all && together_ && ranks_->failed > 0 && ranks_->failed < count())
    return lost_ = error(StatusCode::kInternal, "{}: the device is lost; load the model again",
                         failure.message());
  if (all) return failure;
  lost_ = error(StatusCode::kInternal,
                "{} of {} ranks did not end a step: the device is lost; load the model again{}",
                ranks_->running, count(), failure.ok() ? "" : " (" + failure.message() + ")");
  ranks_->exchange->fail(lost_);
  return lost_;
}

BackendCaps ParallelBackend::caps() const {
  BackendCaps caps = first().caps();
  caps.name = fmt::format("{} ranks, each {}", count(), caps.name);
  caps.threads *= static_cast<int>(count());
  return caps;
}

// The names of GPUs have a number.
bool ParallelBackend::on_host() const { return first().device().name.find(':') == std::string::npos; }

// As create_backend() takes it: "cuda:0,1", or "cuda:0,0" of ranks that share a GPU. Ranks of a host have one
// device.
DeviceInfo ParallelBackend::device() const {
  DeviceInfo all = first().device();
  if (on_host()) return all;
  for (size_t rank = 1; rank < count(); ++rank) {
    const DeviceInfo own = ranks_->backends[rank]->device();
    all.name += "," + own.name.substr(own.name.find(':') + 1);
    all.memory_total += own.memory_total, all.memory_free += own.memory_free;
  }
  return all;
}

double ParallelBackend::kv_token_bytes(const ModelConfig& config) const {
  double bytes = 0;
  for (const auto& rank : ranks_->backends) bytes += rank->kv_token_bytes(config);
  return bytes;
}

// Ranks of a host share its memory. Those of GPUs need as much each, so that the fullest GPU counts for all.
double ParallelBackend::available_memory() const {
  double least = first().available_memory();
  for (const auto& rank : ranks_->backends) least = std::min(least, rank->available_memory());
  return on_host() ? least : least * static_cast<double>(count());
}

std::vector<MemoryPart> ParallelBackend::memory(const ModelConfig& config, const ModelWeights& weights,
                                                const KvLayout& layout) {
  std::vector<MemoryPart> sums = first().memory(config, weights, layout);
  for (size_t rank = 1; rank < count(); ++rank) {
    const std::vector<MemoryPart> parts = ranks_->backends[rank]->memory(config, weights, layout);
    for (size_t i = 0; i < sums.size(); ++i) sums[i].bytes += parts[i].bytes;
  }
  return sums;
}

Status ParallelBackend::load(const ModelConfig& config, const ModelWeights& weights,
                             const LoadProgress& progress) {
  RETURN_IF_ERROR(check_ranks(config, weights, static_cast<int>(count())));
  RETURN_IF_ERROR(lost_);
  const auto conversion = std::make_shared<SharedConversion>(weights.convert_experts, count());
  int done = 0, total = 0;  // rank 0's progress, under the ranks' mutex as what follows
  bool told = true;
  Status answer;              // the caller's, who may be told only when the ranks are done
  std::exception_ptr thrown;  // by the caller: likewise
  const auto load_rank = [&](int rank, Backend& backend) {
    ModelWeights own = weights;
    if (weights.convert_experts)
      own.convert_experts = [conversion](int layer) { return (*conversion)(layer); };
    // One of them tells the source what it has read, for all.
    if (rank > 0) own.release = nullptr, own.evict = nullptr, own.prefetch = nullptr;
    return backend.load(config, own, [&, rank](int now, int all) {
      const std::scoped_lock lock(ranks_->mutex);
      if (rank == 0) done = now, total = all, told = false, ranks_->changed.notify_all();
      return answer.ok();
    });
  };
  auto lock = post(load_rank, kRankLoadLimit);
  while (true) {
    ranks_->changed.wait(lock, [&] { return ranks_->running == 0 || !told; });
    if (told) break;
    told = true;
    const int now = done, all = total;
    lock.unlock();
    Status reported;
    try {
      if (!thrown) reported = report(progress, now, all);
    } catch (...) {
      thrown = std::current_exception();
      reported = Status(StatusCode::kCancelled, "loading was ended by an exception");
    }
    lock.lock();
    if (answer.ok()) answer = reported;
  }
  if (thrown) std::rethrow_exception(thrown);
  RETURN_IF_ERROR(ranks_->exchange->failure());
  return answer;
}

Status ParallelBackend::alloc_kv(const KvLayout& layout) {
  return run([&](int, Backend& rank) { return rank.alloc_kv(layout); });
}

std::string ParallelBackend::kv_page_format() const {
  const std::string format = first().kv_page_format();
  return format.empty() ? format : fmt::format("{} of {} ranks", format, count());
}

size_t ParallelBackend::kv_page_bytes() const {
  size_t bytes = 0;
  for (const auto& rank : ranks_->backends) bytes += rank->kv_page_bytes();
  return bytes;
}

// Rank by rank.
template <typename Bytes, typename Copy>
Status ParallelBackend::each_part(Bytes bytes, const Copy& copy) {
  RETURN_IF_ERROR(lost_);
  for (const auto& rank : ranks_->backends) {
    const size_t size = rank->kv_page_bytes();
    RETURN_IF_ERROR(copy(*rank, bytes.first(size)));
    bytes = bytes.subspan(size);
  }
  return {};
}

Status ParallelBackend::read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) {
  return each_part(bytes, [&](Backend& rank, auto part) { return rank.read_kv_page(layer, page, part); });
}

Status ParallelBackend::write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) {
  return each_part(bytes, [&](Backend& rank, auto part) { return rank.write_kv_page(layer, page, part); });
}

std::unique_ptr<KvCopier> ParallelBackend::kv_copier() {
  std::vector<RanksKvCopier::Part> parts;
  for (const auto& rank : ranks_->backends) {
    parts.push_back({rank->kv_copier(), rank->kv_page_bytes()});
    if (parts.back().copier == nullptr) return nullptr;
  }
  return std::make_unique<RanksKvCopier>(std::move(parts));
}

Status ParallelBackend::begin_step(const Batch& batch) {
  RETURN_IF_ERROR(lost_);
  step_ = std::make_shared<Step>(Step{.batch = batch, .calls = {}, .logits = {}});
  return {};
}

void ParallelBackend::unembed(std::span<float> logits) {
  note([](Backend& rank, auto given) { rank.unembed(given); });
  step_->logits.resize(logits.size());
  logits_ = logits;
}

Status ParallelBackend::end_step() {
  // Devices must have the steps of several models in one order, where their kernels wait for other devices.
  static std::mutex launches;
  std::unique_lock lock(launches, std::defer_lock);
  if (together_) lock.lock();
  RETURN_IF_ERROR(run_within_limit([step = step_](int rank, Backend& backend) {
    return run_step(backend, *step, rank == 0 ? std::span(step->logits) : std::span<float>());
  }));
  std::ranges::copy(step_->logits, logits_.begin());
  return {};
}

// Every rank has sampled every row, to the same tokens.
Status ParallelBackend::sampled(std::span<SampledToken> tokens, std::span<float> logits) {
  struct Results {
    std::vector<SampledToken> tokens;
    std::vector<float> logits;
  };
  const auto results = std::make_shared<Results>(
      Results{std::vector<SampledToken>(tokens.size()), std::vector<float>(logits.size())});
  RETURN_IF_ERROR(run_within_limit([results](int rank, Backend& backend) {
    return rank == 0 ? backend.sampled(results->tokens, results->logits) : backend.sampled({}, {});
  }));
  std::ranges::move(results->tokens, tokens.begin());
  std::ranges::copy(results->logits, logits.begin());
  return {};
}

Status ParallelBackend::forget_steps() {
  return run_within_limit([](int, Backend& rank) { return rank.forget_steps(); });
}

Status ParallelBackend::edit_rows(std::span<const EditedRow> rows) {
  return run([rows](int, Backend& rank) { return rank.edit_rows(rows); });
}

}  // namespace

std::unique_ptr<Backend> make_parallel_backend(std::vector<std::unique_ptr<Backend>> ranks,
                                               std::shared_ptr<Exchange> exchange, const RankManner& manner) {
  auto backend = std::make_unique<ParallelBackend>(std::move(ranks), std::move(exchange), manner);
  backend->start();
  return backend;
}

}  // namespace moesaic
