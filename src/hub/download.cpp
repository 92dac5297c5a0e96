#include "hub/download.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>

#include "base/error.h"

namespace moesaic::hub {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPart = int64_t{16} << 20;    // bytes of a request
constexpr int kMostFailures = 8;                // failures of a part in a row
constexpr int64_t kHeadway = int64_t{1} << 20;  // bytes after which failures are counted anew
constexpr int kMostRelocations = 4;             // expired addresses of a part
constexpr int64_t kMostErrorText = 64 << 10;    // bytes of an answer that is an error
constexpr long kOk = 200, kPartial = 206, kUnsatisfiable = 416;

struct Job;

// A range of a file, and the request for what it lacks.
struct Part {
  Job* job = nullptr;
  int64_t begin = 0, end = 0, got = 0;
  std::string held;  // bytes that wait for the parts before
  Exchange exchange;
  bool running = false;
  bool checked = false;     // the answer's range
  bool again = false;       // the file must be fetched anew
  int64_t other_bytes = 0;  // bytes of an answer that is an error
  int64_t got_before = 0;   // when it was started
  int failures = 0, hops = 0, relocations = 0;
  Clock::time_point not_before;
  Status fault;  // the answer's fault

  bool complete() const { return got == end - begin; }
};

struct Job {
  const RemoteFile* file = nullptr;
  std::optional<Descriptor> lock;
  std::optional<PartialFile> partial;
  std::deque<std::unique_ptr<Part>> parts;  // in order; the first one writes
  int64_t next = 0;                         // where the next part begins
  bool ranges = true;                       // the server answers with what was asked for
  bool located = false;                     // the first part knows where it comes from; the others may follow
  bool done = false, wrong_before = false;
  std::string location;  // where the hub keeps it; empty: not yet known
  Clock::time_point try_lock_at;
};

// "bytes 5-9/100": whether it begins at the byte that was asked for, of a file of this size.
bool is_range_of(const std::string& text, int64_t begin, int64_t size) {
  return text.starts_with(fmt::format("bytes {}-", begin)) &&
         (text.ends_with(fmt::format("/{}", size)) || text.ends_with("/*"));
}

// An ETag without quotes and the mark of a weak one.
std::string plain_etag(std::string tag) {
  if (tag.starts_with("W/")) tag.erase(0, 2);
  std::erase(tag, '"');
  return tag;
}

class Download {
 public:
  Download(Web& web, const RepositoryCache& cache, std::string repository, std::string commit,
           const std::vector<RemoteFile>& files, const Watch& watch)
      : web_(web),
        cache_(cache),
        repository_(std::move(repository)),
        commit_(std::move(commit)),
        watch_(watch) {
    for (const RemoteFile& file : files) {
      jobs_.push_back(std::make_unique<Job>());
      jobs_.back()->file = &file;
    }
  }
  ~Download() {
    for (auto& job : jobs_) drop_parts(*job);
  }
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;

  Status run(const std::function<void(const Progress&)>& progress) {
    constexpr int kTurn = 100;  // milliseconds
    constexpr std::chrono::milliseconds kTell(200);
    Clock::time_point tell_at;
    while (!std::ranges::all_of(jobs_, [](const auto& job) { return job->done; })) {
      if (watch_.cancelled()) return {StatusCode::kCancelled, "interrupted"};
      RETURN_IF_ERROR(open_jobs());
      start_parts();
      for (Exchange* ended : web_.run(kTurn)) {
        if (Part* part = part_of(ended)) RETURN_IF_ERROR(take(*part));
      }
      if (Clock::now() < tell_at) continue;
      progress(progress_now());
      tell_at = Clock::now() + kTell;
    }
    return {};
  }

 private:
  int open_count() const {
    return static_cast<int>(
        std::ranges::count_if(jobs_, [](const auto& job) { return job->partial && !job->done; }));
  }

  // Begins with files, in order, until there are as many as connections.
  Status open_jobs() {
    for (auto& job : jobs_) {
      if (open_count() >= web_.options().connections) return {};
      if (!job->done && !job->partial && Clock::now() >= job->try_lock_at) RETURN_IF_ERROR(open(*job));
    }
    return {};
  }

  Status open(Job& job) {
    constexpr std::chrono::milliseconds kAgain(300);
    const RemoteFile& file = *job.file;
    if (cache_.has(file, commit_)) return close(job);
    const auto same = [&](const auto& other) { return other->lock && other->file->sum == file.sum; };
    if (std::ranges::any_of(jobs_, same)) return {};  // this download gets its bytes under another name
    ASSIGN_OR_RETURN(job.lock, cache_.try_lock(file));
    if (!job.lock) {
      watch_.waiting("another program is getting " + file.path);
      job.try_lock_at = Clock::now() + kAgain;
      return {};
    }
    if (cache_.has(file, commit_)) return close(job);  // whoever had the lock is done
    ASSIGN_OR_RETURN(job.partial, PartialFile::open(cache_.incomplete(file), file, watch_));
    job.next = job.partial->size();
    return job.next == file.size ? finish(job) : Status();
  }

  Status close(Job& job) {
    RETURN_IF_ERROR(cache_.link(*job.file, commit_));
    job.partial.reset();
    job.lock.reset();
    job.done = true;
    return {};
  }

  Status finish(Job& job) {
    ASSIGN_OR_RETURN(const bool right, job.partial->finish(cache_.blob(*job.file)));
    if (right) return close(job);
    if (job.wrong_before)
      return error(StatusCode::kIo,
                   "{}: {} came twice with another sum than the hub names; nothing of it was kept",
                   repository_, job.file->path);
    job.wrong_before = true;
    job.next = 0;
    job.location.clear();
    return job.file->size == 0 ? finish(job) : Status();
  }

  void drop_parts(Job& job) {
    for (auto& part : job.parts) {
      if (part->running) web_.stop(part->exchange);
    }
    job.parts.clear();
  }

  Status restart(Job& job) {
    drop_parts(job);
    job.next = 0;
    return job.partial->restart();
  }

  Part* part_of(const Exchange* exchange) {
    for (auto& job : jobs_) {
      for (auto& part : job->parts) {
        if (part->running && &part->exchange == exchange) return part.get();
      }
    }
    return nullptr;  // the file is fetched anew
  }

  int running() const {
    int count = 0;
    for (const auto& job : jobs_)
      count += static_cast<int>(std::ranges::count_if(job->parts, [](const auto& p) { return p->running; }));
    return count;
  }

  void start_parts() {
    const int most = web_.options().connections;
    const size_t window = static_cast<size_t>(most) + 2;  // parts of a file, so that memory is bounded
    int free = most - running();
    for (auto& job : jobs_) {
      if (!job->partial || job->done) continue;
      for (auto& part : job->parts) {
        const bool may = job->located || part == job->parts.front();
        if (free > 0 && may && !part->running && !part->complete() && Clock::now() >= part->not_before)
          start(*part), --free;
      }
      while (free > 0 && (job->located || job->parts.empty()) && job->next < job->file->size &&
             job->parts.size() < window) {
        add_part(*job);
        start(*job->parts.back()), --free;
      }
    }
  }

  void add_part(Job& job) {
    auto part = std::make_unique<Part>();
    part->job = &job;
    part->begin = job.next;
    part->end = job.ranges ? std::min(job.file->size, job.next + kPart) : job.file->size;
    part->exchange.body = [this, p = part.get()](std::string_view bytes) { return body(*p, bytes); };
    job.next = part->end;
    job.parts.push_back(std::move(part));
  }

  bool is_whole(const Part& part) const {
    return part.begin == 0 && part.got == 0 && part.end == part.job->file->size;
  }

  void start(Part& part) {
    Job& job = *part.job;
    part.exchange.url = !job.location.empty() ? job.location
                                              : fmt::format("{}/{}/resolve/{}/{}", web_.options().endpoint,
                                                            repository_, commit_, url_path(job.file->path));
    part.hops = 0;
    send(part);
  }

  void send(Part& part) {
    part.exchange.range = is_whole(part) ? "" : fmt::format("{}-{}", part.begin + part.got, part.end - 1);
    part.checked = part.again = false;
    part.other_bytes = 0;
    part.got_before = part.got;
    part.fault = {};
    part.running = true;
    web_.start(part.exchange);
  }

  // True if an answer with bytes of the file has those that were asked for.
  bool check(Part& part) {
    const bool whole = part.exchange.range.empty();
    part.fault = part.exchange.check_encoding();
    if (!part.fault.ok()) return false;
    part.checked = part.job->located = true;
    if (part.exchange.status == kPartial) {
      if (is_range_of(part.exchange.header("content-range"), part.begin + part.got, part.job->file->size))
        return true;
      part.fault = error(StatusCode::kIo, "{}: it answers with another part of {} than was asked for",
                         origin_of(part.exchange.url), part.job->file->path);
      return false;
    }
    part.again = !whole;  // 200: the whole file, whatever was asked for
    return whole;
  }

  bool body(Part& part, std::string_view bytes) {
    const bool good = part.exchange.status == kOk || part.exchange.status == kPartial;
    if (!good) return (part.other_bytes += static_cast<int64_t>(bytes.size())) <= kMostErrorText;
    if (!part.checked && !check(part)) return false;
    if (part.got + static_cast<int64_t>(bytes.size()) > part.end - part.begin) {
      part.fault = error(StatusCode::kIo, "{}: it sends more of {} than the {} bytes that the hub lists",
                         origin_of(part.exchange.url), part.job->file->path, part.job->file->size);
      return false;
    }
    if (part.job->parts.front().get() == &part) {
      part.fault = part.job->partial->append(bytes);
      if (!part.fault.ok()) return false;
    } else {
      part.held.append(bytes);
    }
    part.got += static_cast<int64_t>(bytes.size());
    return true;
  }

  // Checks that the headers of the hub's answer or redirect agree with its list about the file.
  Status check_names(const Part& part) const {
    const RemoteFile& file = *part.job->file;
    const std::string commit = part.exchange.header("x-repo-commit"),
                      size = part.exchange.header("x-linked-size");
    std::string tag = plain_etag(part.exchange.header("x-linked-etag"));
    if (tag.empty() && part.exchange.redirect.empty()) tag = plain_etag(part.exchange.header("etag"));
    const bool is_sum =
        tag.size() == file.sum.size() && tag.find_first_not_of("0123456789abcdef") == std::string::npos;
    if ((!commit.empty() && commit != commit_) || (!size.empty() && size != std::to_string(file.size)) ||
        (is_sum && tag != file.sum))
      return error(StatusCode::kIo, "{}: the hub's list and its answer differ about {}; try again",
                   repository_, file.path);
    return {};
  }

  // An exchange has ended.
  Status take(Part& part) {
    Job& job = *part.job;
    part.running = false;
    if (!part.fault.ok()) return part.fault;
    const bool at_hub = origin_of(part.exchange.url) == origin_of(web_.options().endpoint);
    const bool answered = part.exchange.status != 0;
    if (part.again || part.exchange.status == kUnsatisfiable) {
      if (!job.ranges || (part.exchange.status == kUnsatisfiable && job.wrong_before)) return refused(part);
      if (part.again)
        job.ranges = false;
      else
        job.wrong_before = true;
      return restart(job);
    }
    if (answered && at_hub && part.exchange.status < 400) RETURN_IF_ERROR(check_names(part));
    if (answered && !part.exchange.redirect.empty()) return follow(part);
    if (part.complete()) return advance(job);
    const bool short_answer = part.exchange.status == kOk || part.exchange.status == kPartial;
    if (short_answer || !answered || may_pass(part.exchange.status)) return retry(part);
    // The address that the hub gave is of some minutes only.
    if (!at_hub && part.relocations++ < kMostRelocations) {
      job.location.clear();
      return {};
    }
    return refused(part);
  }

  Status follow(Part& part) {
    RETURN_IF_ERROR(web_.check_redirect(part.exchange.url, part.exchange.redirect, ++part.hops));
    part.exchange.url = part.exchange.redirect;
    if (origin_of(part.exchange.url) != origin_of(web_.options().endpoint))
      part.job->location = part.exchange.url, part.job->located = true;
    send(part);
    return {};
  }

  // The parts at the front that are whole are on disk; the next one writes from now on.
  Status advance(Job& job) {
    while (!job.parts.empty() && job.parts.front()->complete()) {
      job.parts.pop_front();
      if (job.parts.empty()) break;
      Part& first = *job.parts.front();
      RETURN_IF_ERROR(job.partial->append(first.held));
      first.held = {};
    }
    return job.partial->size() == job.file->size ? finish(job) : Status();
  }

  Status retry(Part& part) {
    Job& job = *part.job;
    // Without ranges all of it is lost.
    const bool headway = job.ranges && part.got - part.got_before >= kHeadway;
    part.failures = headway ? 1 : part.failures + 1;
    const bool whole_answer = part.exchange.failure.empty() && part.exchange.status < 300;
    const std::string why =
        whole_answer ? fmt::format("{}: it sends less of {} than the {} bytes that the hub lists",
                                   origin_of(part.exchange.url), job.file->path, job.file->size)
        : part.exchange.failure.empty()
            ? fmt::format("{} answers {}", origin_of(part.exchange.url), part.exchange.status)
            : fmt::format("{}: {}", origin_of(part.exchange.url), part.exchange.failure);
    const double wait = seconds_to_wait(part.exchange.headers, part.exchange.status, part.failures);
    const bool busy = part.exchange.failure.empty() && !whole_answer;
    if (part.failures >= kMostFailures || wait > kLongestWait) {
      if (busy) return refused(part);
      return error(StatusCode::kIo, "{}; given up after {} attempts, what has come is kept: run it again",
                   why, part.failures);
    }
    if (wait > kShortWait) watch_.waiting(why);
    part.not_before =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait));
    if (job.ranges || part.got == 0) return {};
    const int failures = part.failures;
    const Clock::time_point not_before = part.not_before;
    RETURN_IF_ERROR(restart(job));
    add_part(job);
    job.parts.back()->failures = failures;
    job.parts.back()->not_before = not_before;
    return {};
  }

  Status refused(const Part& part) const {
    return refusal(part.exchange.status, part.exchange.headers, repository_, web_.options());
  }

  Progress progress_now() const {
    Progress progress;
    for (const auto& job : jobs_) {
      progress.total += job->file->size;
      if (job->done) {
        progress.done += job->file->size;
        continue;
      }
      progress.done += job->partial ? job->partial->size() : cache_.bytes_there(*job->file, commit_);
      for (const auto& part : job->parts) progress.done += static_cast<int64_t>(part->held.size());
    }
    return progress;
  }

  Web& web_;
  const RepositoryCache& cache_;
  const std::string repository_, commit_;
  const Watch& watch_;
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace

Status download(Web& web, const RepositoryCache& cache, const std::string& repository,
                const std::string& commit, const std::vector<RemoteFile>& files, const Watch& watch,
                const std::function<void(const Progress&)>& progress) {
  return Download(web, cache, repository, commit, files, watch).run(progress);
}

}  // namespace moesaic::hub
