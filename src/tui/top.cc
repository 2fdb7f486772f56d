// SPDX-License-Identifier: Apache-2.0
#include "tui/top.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "base/unique_fd.h"
#include "base/units.h"
#include "tui/curses_terminal.h"
#include "tui/draw.h"
#include "tui/feed.h"

namespace gpumux::tui {
namespace {

Look LookOf(const TopOptions& options) {
  Look look;
  look.ascii = options.ascii;
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) == 0) look.host = host;
  look.every = FormatDuration(options.interval);
  const time_t now = ::time(nullptr);
  tm local{};
  char time[16] = "";
  if (::localtime_r(&now, &local) && ::strftime(time, sizeof time, "%H:%M:%S", &local) > 0) look.time = time;
  look.utc_offset_seconds = local.tm_gmtoff;
  return look;
}

// SIGINT, SIGTERM and SIGHUP as a descriptor, for as long as this lives.
class Endings {
 public:
  Endings() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
    fd_ = UniqueFd(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Endings() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Endings(const Endings&) = delete;
  Endings& operator=(const Endings&) = delete;

  int fd() const { return fd_.get(); }
  // 0: none came.
  int Take() const {
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_{}, before_{};
  UniqueFd fd_;
};

class Session {
 public:
  Session(CursesTerminal& terminal, Feed& feed, const TopOptions& options)
      : terminal_(terminal),
        feed_(feed),
        options_(options),
        view_(options.readonly),
        look_(LookOf(options)) {}

  // False: it is over.
  bool TakeKeys() {
    while (const auto key = terminal_.Read()) {
      const Room room = RoomOf(model_, view_, terminal_.width(), terminal_.height());
      if (auto action = view_.Press(*key, model_, room)) feed_.Do(std::move(*action));
    }
    return !view_.quit();
  }

  void TakeNews() {
    feed_.Seen();
    while (auto message = feed_.TakeMessage()) view_.Say(std::move(*message));
    if (view_.paused()) return;
    auto update = feed_.TakeUpdate();
    if (!update) return;
    Apply(std::move(*update), model_);
    view_.Follow(model_);
    look_ = LookOf(options_);
  }

  void Show() { terminal_.Show(Draw(model_, view_, terminal_.width(), terminal_.height(), look_)); }

 private:
  CursesTerminal& terminal_;
  Feed& feed_;
  const TopOptions& options_;
  Model model_;
  View view_;
  Look look_;
};

int RunUntilOver(CursesTerminal& terminal, Feed& feed, const Endings& endings, const TopOptions& options) {
  Session session(terminal, feed, options);
  session.Show();
  for (;;) {
    pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {feed.fd(), POLLIN, 0}, {endings.fd(), POLLIN, 0}};
    // A change of size interrupts it.
    if (::poll(fds, std::size(fds), -1) < 0 && errno != EINTR) return 1;
    if (const int signal = endings.Take(); signal != 0) return 128 + signal;
    if (!session.TakeKeys()) return 0;
    if ((fds[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return 128 + SIGHUP;
    session.TakeNews();
    session.Show();
  }
}

}  // namespace

Result<std::string> OneScreen(Daemon& daemon, const TopOptions& options, int width, int height) {
  Model model;
  Update first = Gather(daemon, 0);
  if (!first.sample) return tl::unexpected(first.sample.error());
  const bool goes_on = first.lost.empty();
  Apply(std::move(first), model);
  if (goes_on) {
    std::this_thread::sleep_for(options.interval);
    if (Update second = Gather(daemon, model.next_event_after()); second.sample)
      Apply(std::move(second), model);
  }
  View view(options.readonly);
  view.Follow(model);
  Look look = LookOf(options);
  look.keys = false;
  return Draw(model, view, width, height, look).Text();
}

Result<int> RunTop(Daemon& daemon, const TopOptions& options) {
  const Endings endings;
  // In this order: the terminal is put back before the last call to the daemon is waited for.
  Feed feed(daemon, options.interval);
  const auto terminal = CursesTerminal::Open(options.color);
  if (!terminal) return tl::unexpected(terminal.error());
  return RunUntilOver(**terminal, feed, endings, options);
}

}  // namespace gpumux::tui
