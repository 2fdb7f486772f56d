// SPDX-License-Identifier: Apache-2.0
#include "cli/daemon_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "cli/daemon_start.h"
#include "cli/run_request.h"

namespace gpumux::cli {

namespace {

using ipc::SessionClient;
using ipc::SessionEvent;
using Steady = std::chrono::steady_clock;

constexpr auto kStartAfter = std::chrono::seconds(1);
constexpr auto kStartAgain = std::chrono::seconds(15);
constexpr auto kAskAgain = std::chrono::seconds(2);  // a daemon that knows nothing of the lease
constexpr auto kAnswer = std::chrono::seconds(2);
constexpr auto kNoted = std::chrono::seconds(1);
constexpr auto kLastLook = std::chrono::seconds(2);
constexpr auto kShortLook = std::chrono::milliseconds(500);  // at a daemon that others start
constexpr int kLookMs = 50;

// In a process of its own, since it may take its time and this one forwards signals.
void StartInBackground(const RuntimePaths& paths) {
  // The daemon shall be no descendant of ours: not ours to adopt, for so long.
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (::fork() == 0) {
    (void)StartUserDaemon(paths);
    ::_exit(0);
  }
}

}  // namespace

DaemonLink::DaemonLink(SessionClient session, Endpoints endpoints, std::string tenant_id,
                       std::vector<int> locks)
    : session_(std::move(session)),
      endpoints_(std::move(endpoints)),
      home_(session_->path()),
      tenant_id_(std::move(tenant_id)),
      locks_(std::move(locks)) {
  own_daemon_ = home_ == endpoints_.own.session_socket;
}

bool DaemonLink::SendStarted(const std::string& json) {
  if (session_ && !session_->SendStarted(json)) Lost();
  return session_.has_value();
}

bool DaemonLink::SendEnded(const std::string& json) {
  const auto until = Steady::now() + (own_daemon_ ? kLastLook : kShortLook);
  for (;;) {
    if (session_ && session_->SendEnded(json) && IsNoted()) return true;
    if (session_) Lost();
    // At once: there is nothing else to wait for.
    start_after_ = std::min(start_after_, Steady::now());
    while (!session_) {
      if (unknown_ || Steady::now() >= until) return false;
      OnTick();
      if (!session_) ::poll(nullptr, 0, kLookMs);
    }
  }
}

// False: who had it is gone, and may have known nothing of it.
bool DaemonLink::IsNoted() {
  const auto until = Steady::now() + kNoted;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Steady::now());
    if (left.count() <= 0) return true;  // it hangs, and has it when it goes on
    auto event = session_->Next(left);
    if (!event) return false;
    if (!*event) continue;
    switch ((*event)->type) {
      case SessionEvent::Type::kSummary:
        summary_ = std::move((*event)->json);
        return true;
      case SessionEvent::Type::kNoted:
        return true;
      case SessionEvent::Type::kClosed:
      case SessionEvent::Type::kRefused:
        return false;
      default:
        break;
    }
  }
}

void DaemonLink::OnReadable() {
  const auto event = session_->Next(std::chrono::milliseconds(0));
  if (!event || (*event && (*event)->type == SessionEvent::Type::kClosed)) Lost();
}

void DaemonLink::Lost() {
  session_.reset();
  start_after_ = Steady::now() + kStartAfter;
  unknown_ = false;
}

void DaemonLink::OnTick() {
  if (session_ || (unknown_ && Steady::now() < ask_again_)) return;
  ComeBack();
  if (session_) {
    // Descendants that lose their parent are ours again.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    return;
  }
  if (own_daemon_ && !unknown_ && Steady::now() >= start_after_) {
    start_after_ = Steady::now() + kStartAgain;
    StartInBackground(endpoints_.own);
  }
}

void DaemonLink::ComeBack() {
  unknown_ = false;
  // No other daemon has the lease: it is in the runtime directory of the one that gave it.
  auto client = SessionClient::Connect(home_);
  if (!client || !client->SendResume(RunResumeJson(tenant_id_, pid_), locks_)) return;
  const auto event = client->Next(std::chrono::duration_cast<std::chrono::milliseconds>(kAnswer));
  if (event && *event && (*event)->type == SessionEvent::Type::kResumed) {
    session_ = std::move(*client);
    return;
  }
  // It does not know the lease (its store was lost, or the GPU is), or it is of
  // another release: the program runs on without, and the next daemon may know.
  const bool refused = event && *event && (*event)->type == SessionEvent::Type::kRefused;
  unknown_ = refused || (!event && event.error().code == Code::kUnsupported);
  ask_again_ = Steady::now() + kAskAgain;
}

}  // namespace gpumux::cli
