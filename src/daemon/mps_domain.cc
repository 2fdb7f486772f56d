// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps_domain.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "base/process.h"
#include "daemon/process_tree.h"

namespace gpumux::daemon {

namespace {

constexpr Time kStartLimit = std::chrono::seconds(20);
// Of an end that was asked for, before it is enforced.
constexpr Time kEndLimit = std::chrono::seconds(10);
constexpr Time kStep = std::chrono::milliseconds(50);
// A server that says nothing is asked this often.
constexpr Time kAskEvery = std::chrono::seconds(10);
// Several signs of a fault within so long are of one.
constexpr Time kOneFault = std::chrono::milliseconds(500);
constexpr uint64_t kMostLog = 1 << 20;

std::vector<pid_t> Pids(const std::string& text) {
  std::vector<pid_t> pids;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), pid);
    if (error == std::errc() && end == line.data() + line.size() && pid > 1) pids.push_back(pid);
  }
  return pids;
}

Status MakeDirectory(const std::string& path, mode_t mode) {
  // Its folder is the daemon's own, so nobody else can have put something there.
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST)
    return gpumux::Fail(Code::kUnavailable, fmt::format("cannot make {}: {}", path, std::strerror(errno)));
  if (::chmod(path.c_str(), mode) != 0)
    return gpumux::Fail(Code::kUnavailable, fmt::format("cannot change {}: {}", path, std::strerror(errno)));
  return {};
}

}  // namespace

std::string_view Name(MpsDomain::State state) {
  switch (state) {
    case MpsDomain::State::kStarting:
      return "starting";
    case MpsDomain::State::kActive:
      return "active";
    case MpsDomain::State::kRecovering:
      return "recovering";
    case MpsDomain::State::kSilent:
      return "silent";
    case MpsDomain::State::kEnding:
      return "ending";
    case MpsDomain::State::kGone:
      return "gone";
  }
  return "?";
}

MpsDomain::MpsDomain(EventLoop& loop, const Clock& clock, const MpsPrograms& programs, Place place,
                     MpsRecord record)
    : loop_(loop),
      clock_(clock),
      programs_(programs),
      place_(std::move(place)),
      record_(std::move(record)),
      control_(loop, programs, record_.Adopted() ? record_.pipe_dir : place_.dir + "/pipe",
               record_.Adopted() ? record_.log_dir : place_.dir + "/log") {}

MpsDomain::~MpsDomain() = default;

std::string MpsDomain::NotNow() const {
  switch (state_) {
    case State::kActive:
    case State::kStarting:
      return "";
    case State::kRecovering:
      return "its MPS server recovers, once the clients of before have ended";
    case State::kSilent:
      return fmt::format("its MPS control daemon (pid {}) does not answer", daemon_pid());
    case State::kEnding:
    case State::kGone:
      return "its MPS control daemon is ending";
  }
  return "";
}

void MpsDomain::Set(State state) {
  if (state_ == state) return;
  LogInfo("MPS of {}: {}", Joined(record_.gpus), Name(state));
  state_ = state;
  if (on_change) loop_.Post(on_change);
}

void MpsDomain::Fail(const Error& error) {
  failure_ = error;
  LogWarning("MPS of {}: {}", Joined(record_.gpus), error.ToString());
  End();
}

Status MpsDomain::MakeDirectories() const {
  // Programs of other users write into the pipe directory's socket, so must reach it.
  const mode_t mode = place_.for_everyone ? 0755 : 0700;
  if (Status made = MakeDirectory(place_.dir, mode); !made) return made;
  for (const std::string& path : {control_.pipe_dir(), control_.log_dir()}) {
    if (record_.Adopted()) break;  // its owner's
    if (Status made = MakeDirectory(path, mode); !made) return made;
  }
  return WriteMpsRecord(place_.dir, record_);
}

Status MpsDomain::Keep(bool kept, bool exclusive) {
  record_.kept = kept;
  record_.exclusive = exclusive;
  return WriteMpsRecord(place_.dir, record_);
}

void MpsDomain::Start() {
  deadline_ = clock_.Now() + kStartLimit;
  if (Status made = MakeDirectories(); !made) return Fail(made.error());
  control_.Ask("get_server_list", [this](const Result<std::string>& answer) {
    // One of an earlier gpumuxd.
    if (answer) return StartServer();
    if (answer.error().code == Code::kTimeout && control_.DaemonPid() != 0) return Silent();
    if (record_.Adopted())
      return Fail({Code::kUnavailable, "the MPS control daemon does not answer in " + control_.pipe_dir(),
                   "see control.log in " + control_.log_dir()});
    StartDaemon();
  });
}

void MpsDomain::StartDaemon() {
  control_.StartDaemon(Joined(record_.gpus), [this](const Result<std::string>& answer) {
    if (!answer)
      return Fail({answer.error().code, "the MPS control daemon did not start: " + answer.error().message,
                   "see control.log in " + control_.log_dir()});
    StartServer();
  });
}

void MpsDomain::Await(void (MpsDomain::*step)()) {
  if (IsOver()) return;
  if (deadline_ && clock_.Now() > *deadline_) {
    return Fail({Code::kUnavailable, "the MPS server did not get ready",
                 "see control.log and server.log in " + control_.log_dir()});
  }
  step_ = loop_.After(kStep, [this, step] {
    step_ = {};
    (this->*step)();
  });
}

void MpsDomain::StartServer() {
  daemon_ = Watch(control_.DaemonPid(), &MpsDomain::DaemonDied);
  control_.Ask("get_server_list", [this](const Result<std::string>& answer) {
    if (IsOver()) return;
    // The control daemon may have died meanwhile, before or after its server.
    if (!answer) {
      const bool again = control_.DaemonPid() == 0 && !record_.Adopted();
      return again ? StartDaemon() : Await(&MpsDomain::StartServer);
    }
    if (!Pids(*answer).empty()) return FindServer();
    const uid_t uid = programs_.every_user ? 0 : ::geteuid();
    control_.Ask(fmt::format("start_server -uid {}", uid),
                 [this](const Result<std::string>&) { Await(&MpsDomain::FindServer); });
  });
}

void MpsDomain::FindServer() {
  control_.Ask("get_server_list", [this](const Result<std::string>& answer) {
    const auto pids = answer ? Pids(*answer) : std::vector<pid_t>();
    if (pids.empty()) return Await(&MpsDomain::FindServer);
    // It answers, so it has written its pid by now; just after its start it may not have.
    if (!daemon_) daemon_ = Watch(control_.DaemonPid(), &MpsDomain::DaemonDied);
    if (!server_ || server_->pid != pids[0]) server_ = Watch(pids[0], &MpsDomain::ServerDied);
    if (!server_) return Await(&MpsDomain::FindServer);
    AskState();
  });
}

void MpsDomain::AskState() {
  if (asking_ || !server_) return;
  asking_ = true;
  asked_at_ = clock_.Now();
  control_.Ask(fmt::format("get_server_status {}", server_->pid), [this](const Result<std::string>& answer) {
    asking_ = false;
    TookState(answer);
  });
}

void MpsDomain::AskNow(std::function<void()> answered) {
  // With its last client a server is as if nothing had been.
  if (state_ == State::kActive && LogTellsOfFault()) Faulted();
  if (!server_ || state_ != State::kActive) return loop_.Post(std::move(answered));
  control_.Ask(fmt::format("get_server_status {}", server_->pid),
               [this, answered = std::move(answered)](const Result<std::string>& text) {
                 // The server may write what it knows after its clients have ended.
                 if (state_ == State::kActive && LogTellsOfFault()) Faulted();
                 if (state_ == State::kActive) TookState(text);
                 answered();
               });
}

void MpsDomain::TookState(const Result<std::string>& answer) {
  if (IsOver()) return;
  if (!answer) {
    if (answer.error().code == Code::kTimeout) return Silent();
    if (state_ == State::kStarting) Await(&MpsDomain::FindServer);
    return;
  }
  if (answer->starts_with("ACTIVE")) {
    if (state_ == State::kStarting) (void)LogTellsOfFault();  // of before
    deadline_.reset();
    return Set(State::kActive);
  }
  if (answer->starts_with("FAULT")) Faulted();
  Await(&MpsDomain::AskState);
}

void MpsDomain::Tick() {
  if (state_ != State::kActive && state_ != State::kSilent) return;
  if (state_ == State::kActive && LogTellsOfFault()) return Faulted();
  if (clock_.Now() - asked_at_ >= kAskEvery) AskState();
}

// Its words for one fault are many lines (seen on an H200, driver 580), all with
// these, and they may say of the innocent that they were the reason.
bool MpsDomain::LogTellsOfFault() {
  constexpr std::string_view kWords = "atal GPU error";
  std::ifstream log(control_.log_dir() + "/server.log", std::ios::binary | std::ios::ate);
  if (!log) return false;
  const auto size = static_cast<uint64_t>(log.tellg());
  // Of a log that grew by more than that the end; one that is shorter is another.
  uint64_t from = size < log_read_ ? 0 : log_read_;
  if (size - from > kMostLog) from = size - kMostLog;
  log_read_ = size;
  std::string text(size - from, '\0');
  log.seekg(static_cast<std::streamoff>(from));
  log.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text.find(kWords) != std::string::npos;
}

void MpsDomain::Faulted() {
  const bool same = fault_at_ && clock_.Now() - *fault_at_ < kOneFault;
  if (state_ == State::kRecovering || same) return;
  fault_at_ = clock_.Now();
  ++faults_;
  deadline_.reset();  // until the last of its clients has ended, however long that takes
  Set(State::kRecovering);
  if (on_lost_work) on_lost_work(true);
  Await(&MpsDomain::AskState);
}

std::optional<MpsDomain::Watched> MpsDomain::Watch(pid_t pid, void (MpsDomain::*died)()) {
  if (pid == 0) return std::nullopt;
  auto pidfd = OpenPidfd(pid);
  if (!pidfd) return std::nullopt;
  Watched watched{pid, std::move(*pidfd), {}};
  watched.death = loop_.OnReadable(watched.pidfd.get(), [this, died] { (this->*died)(); });
  return watched;
}

// Its clients have error 806 for good (measured). A new one serves whoever comes.
void MpsDomain::ServerDied() {
  server_.reset();
  if (IsOver()) return;
  if (state_ == State::kActive || state_ == State::kRecovering || state_ == State::kSilent) {
    ++server_deaths_;
    if (on_lost_work) on_lost_work(false);
  }
  Set(State::kRecovering);
  deadline_ = clock_.Now() + kStartLimit;
  Await(&MpsDomain::StartServer);
}

// Its server ends with it (measured), which is told by the server's own end.
void MpsDomain::DaemonDied() {
  daemon_.reset();
  if (state_ == State::kGone) return;
  if (state_ == State::kEnding) return Set(State::kGone);
  if (record_.Adopted()) {
    LogWarning("the MPS control daemon of {} has ended, which somebody else started", Joined(record_.gpus));
    return Set(State::kGone);
  }
  LogWarning("the MPS control daemon of {} has died: starting another", Joined(record_.gpus));
  Set(State::kRecovering);
  deadline_ = clock_.Now() + kStartLimit;
  Await(&MpsDomain::StartDaemon);
}

// Its clients go on, so it is not killed; one that was only stopped goes on too.
void MpsDomain::Silent() {
  if (!daemon_) daemon_ = Watch(control_.DaemonPid(), &MpsDomain::DaemonDied);
  const auto stat =
      daemon_ ? ReadProcessStat(daemon_->pid) : Result<ProcessStat>(gpumux::Fail(Code::kNotFound, ""));
  if (stat && stat->state == 'T') {
    LogWarning("the MPS control daemon (pid {}) was stopped: SIGCONT", daemon_->pid);
    SendSignal(daemon_->pidfd, SIGCONT);
  }
  Set(State::kSilent);
  Await(&MpsDomain::FindServer);
}

void MpsDomain::End() {
  if (IsOver()) return;
  step_ = {};
  if (record_.Adopted()) return Set(State::kGone);
  const bool silent = state_ == State::kSilent;
  Set(State::kEnding);
  if (!daemon_) daemon_ = Watch(control_.DaemonPid(), &MpsDomain::DaemonDied);
  if (!daemon_) return Set(State::kGone);
  // It would not read it.
  if (silent) return Kill();
  // The end itself is seen by its pidfd. One that does not obey has no clients to lose.
  control_.Ask("quit -t 2",
               [this](const Result<std::string>&) { step_ = loop_.After(kEndLimit, [this] { Kill(); }); });
}

void MpsDomain::Kill() {
  if (server_) SendSignal(server_->pidfd, SIGKILL);
  if (daemon_) SendSignal(daemon_->pidfd, SIGKILL);
}

void MpsDomain::AskClients(std::function<void(Result<std::set<pid_t>>)> answer) {
  if (!server_) return answer(gpumux::Fail(Code::kUnavailable, "there is no MPS server"));
  control_.Ask(fmt::format("get_client_list {}", server_->pid),
               [answer = std::move(answer)](const Result<std::string>& text) {
                 if (!text) return answer(tl::unexpected(text.error()));
                 const auto pids = Pids(*text);
                 // Words of some other driver: not understood, so no list.
                 if (pids.empty() && !text->empty())
                   return answer(gpumux::Fail(Code::kUnavailable, "no list of clients: " + *text));
                 answer(std::set<pid_t>(pids.begin(), pids.end()));
               });
}

void MpsDomain::TerminateClient(pid_t pid, std::function<void(Status)> done) {
  if (!server_) return done(gpumux::Fail(Code::kUnavailable, "there is no MPS server"));
  control_.Ask(fmt::format("terminate_client {} {}", server_->pid, pid),
               [done = std::move(done)](const Result<std::string>& text) {
                 done(text ? Status() : Status(tl::unexpected(text.error())));
               });
}

}  // namespace gpumux::daemon
