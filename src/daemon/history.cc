// SPDX-License-Identifier: Apache-2.0
#include "daemon/history.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "daemon/history_record.h"
#include "daemon/report.h"
#include "daemon/user_name.h"
#include "history/answer.h"

namespace gpumux::daemon {

namespace {

using Json = nlohmann::ordered_json;
constexpr std::chrono::seconds kTryAgain(5);
constexpr std::chrono::hours kPruneEach(1);
constexpr size_t kMostPruned = 1000;

}  // namespace

History::History(EventLoop& loop, const Clock& clock, Settings settings)
    : loop_(loop),
      clock_(clock),
      settings_(std::move(settings)),
      store_(settings_.path),
      told_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!told_fd_.valid()) {
    LogError("no history: {}", std::strerror(errno));
    return;
  }
  told_watch_ = loop_.OnReadable(told_fd_.get(), [this] { DoTold(); });
  thread_ = std::thread([this] { Run(); });
}

History::~History() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void History::Add(std::string id, std::string record) {
  if (!thread_.joinable()) {
    if (on_kept) on_kept(id);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMostQueued) {
      dropped_ = true;
      return;
    }
    queue_.emplace_back(std::move(id), std::move(record));
  }
  wake_.notify_one();
}

void History::Add(std::vector<history::GpuSample> samples) {
  {
    const std::lock_guard lock(mutex_);
    // A disk that hangs costs the oldest.
    if (samples_.size() >= kMostSamples) samples_.pop_front();
    samples_.push_back(std::move(samples));
  }
  wake_.notify_one();
}

void History::Handle(const ApiServer::Request& request, ApiServer::Reply reply) {
  const auto refuse = [&](const Error& error) { reply({HttpStatus(error.code), Report::ErrorBody(error)}); };
  if (settings_.path.empty())
    return refuse(
        {Code::kUnavailable, "this daemon keeps no history", "see history.keep in the configuration"});
  Asked asked{.query = {}, .viewer = request.peer.uid, .reply = {}};
  if (request.path == "/v1/history/gpus") {
    const auto now =
        std::chrono::duration_cast<std::chrono::milliseconds>(clock_.WallTime().time_since_epoch());
    auto query = history::ParseGpuQuery(request.query, now.count());
    if (!query) return refuse(query.error());
    asked.query = std::move(*query);
  } else {
    auto query = history::ParseQuery(request.query);
    if (!query) return refuse(query.error());
    // Labels are for their owner and root: nobody else finds out by asking for them.
    if (!query->label_key.empty() && IsStranger(request.peer.uid)) query->uid = request.peer.uid;
    asked.query = std::move(*query);
  }
  {
    const std::lock_guard lock(mutex_);
    if (asked_.size() < kMostAsked) {
      asked.reply = std::move(reply);
      asked_.push_back(std::move(asked));
      reply = nullptr;
    }
  }
  if (reply) return refuse({Code::kUnavailable, "too many ask for the history", "try again in a second"});
  wake_.notify_one();
}

void History::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    if (failing_ && now >= retry_at_) failing_ = false;
    if (stop_ && (failing_ || queue_.empty())) return;
    if (!queue_.empty() && !failing_) {
      Write(lock);
    } else if (!asked_.empty()) {
      Answer(lock);
    } else if (!samples_.empty() && !failing_) {
      WriteSamples(lock);
    } else if (now >= prune_at_) {
      PruneNow(lock);
    } else {
      wake_.wait_until(lock, failing_ ? std::min(retry_at_, prune_at_) : prune_at_);
    }
  }
}

void History::Write(std::unique_lock<std::mutex>& lock) {
  auto [id, record] = queue_.front();
  lock.unlock();
  const auto past = ParseHistoryRecord(record);
  Status kept = past ? store_.Put(*past) : Status(tl::unexpected(past.error()));
  const std::string why = kept ? "" : kept.error().ToString();
  if (why != said_ && !why.empty()) LogError("history: {}", why);
  said_ = why;
  lock.lock();
  // What no daemon can read is of no use to the next one either.
  if (!kept && past) {
    failing_ = true;
    retry_at_ = std::chrono::steady_clock::now() + kTryAgain;
    return;
  }
  queue_.pop_front();
  if (queue_.empty() && std::exchange(dropped_, false)) {
    Tell([this] {
      if (on_room) on_room();
    });
  }
  Tell([this, id = std::move(id)] {
    if (on_kept) on_kept(id);
  });
}

void History::Tell(std::function<void()> what) {
  told_.push_back(std::move(what));
  const uint64_t one = 1;
  (void)!::write(told_fd_.get(), &one, sizeof one);
}

void History::DoTold() {
  uint64_t count = 0;
  (void)!::read(told_fd_.get(), &count, sizeof count);
  std::vector<std::function<void()>> told;
  {
    const std::lock_guard lock(mutex_);
    told.swap(told_);
  }
  for (const auto& what : told) what();
}

void History::Answer(std::unique_lock<std::mutex>& lock) {
  Asked asked = std::move(asked_.front());
  asked_.pop_front();
  lock.unlock();
  ApiServer::Response response;
  try {
    response = Look(asked);
  } catch (const std::exception& e) {
    // A record that bits rotted in.
    const Error error{Code::kUnavailable, fmt::format("the history cannot be read: {}", e.what()),
                      "see gpumuxd.log"};
    response = {HttpStatus(error.code), Report::ErrorBody(error)};
  }
  lock.lock();
  Tell([reply = std::move(asked.reply), response = std::move(response)] { reply(response); });
}

ApiServer::Response History::Look(const Asked& asked) {
  const auto failure = [](const Error& error) {
    return ApiServer::Response{HttpStatus(error.code), Report::ErrorBody(error)};
  };
  if (const auto* query = std::get_if<history::GpuQuery>(&asked.query)) {
    const auto found = store_.FindGpus(*query);
    if (!found) return failure(found.error());
    return {200,
            EnvelopeOf(
                "gpumux.gpu-history/1", clock_, settings_.simulated,
                history::GpuAnswerJson(*found, *query).dump(-1, ' ', false, Json::error_handler_t::replace))};
  }
  const auto found = store_.Find(std::get<history::Query>(asked.query));
  return found ? ApiServer::Response{200, Body(*found, asked.viewer)} : failure(found.error());
}

void History::WriteSamples(std::unique_lock<std::mutex>& lock) {
  const auto samples = std::move(samples_.front());
  samples_.pop_front();
  lock.unlock();
  const Status kept = store_.Put(samples);
  const std::string why = kept ? "" : kept.error().ToString();
  if (why != said_ && !why.empty()) LogError("history: {}", why);
  said_ = why;
  lock.lock();
}

void History::PruneNow(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch() - settings_.keep);
  // A part at a time: who asks or ends meanwhile goes first.
  const auto gone = store_.Prune(now.count(), kMostPruned);
  if (gone && gone->tenants > 0)
    LogInfo("history: {} tenant(s) that ended longer ago are forgotten", gone->tenants);
  lock.lock();
  const bool more = gone && gone->more;
  prune_at_ = std::chrono::steady_clock::now() +
              (more ? std::chrono::milliseconds(0) : std::chrono::milliseconds(kPruneEach));
}

std::string History::Body(const history::Answer& answer, uid_t viewer) const {
  const Json data = history::AnswerJson(answer, [&](Json record, const history::PastTenant& past) {
    return TenantForViewer(std::move(record), viewer, past.uid);
  });
  return EnvelopeOf("gpumux.history/1", clock_, settings_.simulated,
                    data.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace gpumux::daemon
