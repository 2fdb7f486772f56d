// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/kill_point.h"
#include "base/log.h"
#include "base/process.h"
#include "daemon/tenants.h"
#include "daemon/user_name.h"
#include "gpumux/abi/keeper.h"
#include "ipc/frame.h"

namespace gpumux::daemon {

namespace {

constexpr Time kTakePatience = std::chrono::seconds(1);
// It does nothing but read, but may have to wait for a processor on a busy machine: giving
// it up means that everybody sends everything again. Once a second at most it costs this.
constexpr Time kSendPatience = std::chrono::milliseconds(200);
constexpr Time kStartAgain = std::chrono::seconds(1);

gpumux_keeper_frame MakeFrame(unsigned type, const KeptName& name) {
  gpumux_keeper_frame frame{};
  frame.magic = GPUMUX_KEEPER_MAGIC;
  frame.version = GPUMUX_KEEPER_VERSION;
  frame.type = static_cast<uint16_t>(type);
  ipc::SetField(frame.group, name.first);
  ipc::SetField(frame.name, name.second);
  return frame;
}

uint32_t ToLinger(Time time) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, GPUMUX_KEEPER_MAX_LINGER_MS));
}

// In the child of a fork: only async-signal-safe calls. Forks again, so that
// the keeper is nobody's child who would have to reap it.
[[noreturn]] void BecomeKeeper(const char* program, int listener) {
  ::setsid();
  if (const pid_t keeper = ::fork(); keeper != 0) ::_exit(keeper > 0 ? 0 : 1);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) ::signal(signal, SIG_DFL);
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDIN_FILENO);
  ::dup2(null, STDOUT_FILENO);
  // Duplicated first: `listener` may have the very number, with close-on-exec.
  if (::dup2(::fcntl(listener, F_DUPFD_CLOEXEC, 10), GPUMUX_KEEPER_LISTEN_FD) < 0) ::_exit(1);
  // Above all not the lock sockets: the keeper holds what it is sent.
  ::syscall(SYS_close_range, GPUMUX_KEEPER_LISTEN_FD + 1u, ~0u, 0u);
  if (::chdir("/") != 0) ::_exit(1);
  char* const arguments[] = {const_cast<char*>("gpumux-keeper"), nullptr};
  ::execve(program, arguments, environ);
  ::_exit(1);
}

}  // namespace

KeeperLink::KeeperLink(EventLoop& loop, const Clock& clock, std::string socket_path, std::string program)
    : loop_(loop), clock_(clock), socket_path_(std::move(socket_path)), program_(std::move(program)) {}

KeeperLink::~KeeperLink() = default;

bool KeeperLink::Connect() {
  // A stopped keeper accepts nobody.
  auto socket = ipc::SeqpacketSocket::ConnectAtOnce(socket_path_);
  if (!socket) return false;
  const auto peer = ipc::PeerOf(socket->fd());
  if (!peer || IsStranger(peer->uid)) {
    LogError("{} is not a keeper of ours", socket_path_);
    return false;
  }
  socket_ = std::move(*socket);
  told_.clear();
  forgotten_ = false;
  watch_ = loop_.OnReadable(socket_.fd(), [this] { Readable(); });
  if (on_connected) on_connected();
  return true;
}

bool KeeperLink::BeConnected() {
  if (program_.empty()) return false;
  if (socket_.valid()) return true;
  if (not_before_ && clock_.Now() < *not_before_) return false;
  not_before_ = clock_.Now() + kStartAgain;
  return Connect() || Start();
}

bool KeeperLink::Start() {
  auto listener = ipc::UnixListener::Listen(socket_path_, SOCK_SEQPACKET, 0600);
  if (!listener) {
    LogError("no keeper: {}", listener.error().ToString());
    return false;
  }
  // Nobody listened: one that was lost has died since.
  if (on_gone) on_gone();
  const pid_t child = ::fork();
  if (child == 0) BecomeKeeper(program_.c_str(), listener->fd());
  if (child < 0) {
    LogError("no keeper: cannot fork: {}", std::strerror(errno));
    return false;
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  // From here on it is the keeper that listens there.
  listener->Release().reset();
  KillPoint("keeper-start");
  return status == 0 && Connect();
}

void KeeperLink::Lost(const std::string& why) {
  LogWarning("the keeper {}", why);
  watch_ = {};
  socket_.Close();
  told_.clear();
  if (on_lost) loop_.Post(on_lost);
}

void KeeperLink::Gone(const std::string& why) {
  Lost(why);
  if (on_gone) on_gone();
}

void KeeperLink::Look() {
  if (socket_.valid()) Readable();
}

// It says nothing unasked.
void KeeperLink::Readable() {
  const auto received = socket_.Receive();
  if (received && received->what == ipc::Received::What::kWouldBlock) return;
  if (received && received->what == ipc::Received::What::kClosed) return Gone("is gone");
  Lost("says what none says");
}

std::vector<UniqueFd> KeeperLink::Take() {
  std::vector<UniqueFd> taken;
  if (program_.empty() || !Connect()) return taken;
  const Time until = clock_.Now() + kTakePatience;
  if (!Send(GPUMUX_KEEPER_TAKE, {}, nullptr)) return taken;
  for (unsigned count = 0; count <= GPUMUX_KEEPER_MAX_ITEMS;) {
    auto received = socket_.Receive();
    if (received && received->what == ipc::Received::What::kWouldBlock) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock_.Now()).count();
      pollfd poll{socket_.fd(), POLLIN, 0};
      if (left > 0 && ::poll(&poll, 1, static_cast<int>(left)) == 1) continue;
      Lost("does not answer: it may still hold GPUs");
      return taken;
    }
    gpumux_keeper_frame frame{};
    const bool packet =
        received && received->what == ipc::Received::What::kPacket && received->bytes.size() == sizeof frame;
    if (packet) std::memcpy(&frame, received->bytes.data(), sizeof frame);
    if (frame.magic != GPUMUX_KEEPER_MAGIC || frame.version != GPUMUX_KEEPER_VERSION) break;
    if (frame.type == GPUMUX_KEEPER_END) return taken;
    if (frame.type != GPUMUX_KEEPER_ITEM) break;
    ++count;
    KillPoint("keeper-taking");
    for (UniqueFd& fd : received->fds) taken.push_back(std::move(fd));
    const bool process = frame.flags & GPUMUX_KEEPER_WATCH;
    if (process && (frame.flags & GPUMUX_KEEPER_LINGER)) lingering_.push_back(ipc::FieldText(frame.group));
  }
  Lost("ended, or is one of another release");
  return taken;
}

bool KeeperLink::Send(unsigned type, const KeptName& name, const Kept* item) {
  gpumux_keeper_frame frame = MakeFrame(type, name);
  UniqueFd pidfd;
  int fd = item ? item->fd : -1;
  if (item && item->process) {
    auto opened = OpenPidfd(item->process->pid);
    if (!opened || NameProcess(item->process->pid) != *item->process) return true;  // dead by now
    pidfd = std::move(*opened);
    fd = pidfd.get();
    frame.flags = GPUMUX_KEEPER_WATCH;
  }
  return SendFrame(frame, std::span<const int>(&fd, fd >= 0 ? 1 : 0));
}

bool KeeperLink::SendFrame(const gpumux_keeper_frame& frame, std::span<const int> fds) {
  const auto bytes = std::as_bytes(std::span(&frame, 1));
  Status sent = socket_.Send(bytes, fds);
  // What many processes send at once, or one without end, is soon taken.
  const Time until = clock_.Now() + kSendPatience;
  while (!sent && sent.error().code == Code::kTimeout && clock_.Now() < until) {
    pollfd poll{socket_.fd(), POLLOUT, 0};
    ::poll(&poll, 1, 1);
    sent = socket_.Send(bytes, fds);
  }
  if (!sent && sent.error().code == Code::kUnavailable)
    Gone("is gone");
  else if (!sent)
    Lost("cannot be told: " + sent.error().message);
  return sent.has_value();
}

bool KeeperLink::Watch(const std::string& group, int pidfd) {
  if (!BeConnected()) return false;
  gpumux_keeper_frame frame = MakeFrame(GPUMUX_KEEPER_HOLD, {group, "process"});
  frame.flags = GPUMUX_KEEPER_WATCH | GPUMUX_KEEPER_LINGER;
  return SendFrame(frame, std::span(&pidfd, 1));
}

bool KeeperLink::Linger(const std::string& group, unsigned number, std::span<const int> fds, Time time) {
  if (!socket_.valid()) return false;
  gpumux_keeper_frame frame = MakeFrame(GPUMUX_KEEPER_HOLD, {group, fmt::format("devices {}", number)});
  frame.flags = GPUMUX_KEEPER_LINGER;
  frame.linger_ms = ToLinger(time);
  return SendFrame(frame, fds);
}

bool KeeperLink::LingerFor(const std::string& group, Time time, bool dead) {
  if (!socket_.valid()) return false;
  gpumux_keeper_frame frame = MakeFrame(GPUMUX_KEEPER_LINGER_FOR, {group, ""});
  frame.flags = dead ? GPUMUX_KEEPER_DEAD : 0;
  frame.linger_ms = ToLinger(time);
  return SendFrame(frame, {});
}

bool KeeperLink::Release(const std::string& group) {
  return socket_.valid() && SendFrame(MakeFrame(GPUMUX_KEEPER_RELEASE, {group, ""}), {});
}

void KeeperLink::Hold(const KeptItems& items) {
  if (!socket_.valid() && (items.empty() || !BeConnected())) return;
  for (const auto& [name, item] : items) {
    if (told_.contains(name)) continue;
    if (!Send(GPUMUX_KEEPER_HOLD, name, &item)) return;
    KillPoint("keeper-told");
    told_.insert(name);
  }
  if (!forgotten_ && !Send(GPUMUX_KEEPER_FORGET_OTHERS, {}, nullptr)) return;
  forgotten_ = true;
  std::vector<KeptName> gone;
  for (const KeptName& name : told_) {
    if (!items.contains(name)) gone.push_back(name);
  }
  for (const KeptName& name : gone) {
    if (!Send(GPUMUX_KEEPER_RELEASE, name, nullptr)) return;  // all is forgotten
    told_.erase(name);
  }
}

}  // namespace gpumux::daemon
