// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "daemon/event_loop.h"
#include "daemon/tenant.h"
#include "ipc/seqpacket.h"

struct gpumux_keeper_frame;

namespace gpumux::daemon {

// What the keeper shall hold: by group and name a descriptor of ours, or a
// process whose life keeps the group.
struct Kept {
  int fd = -1;                         // ours, open as long as it is kept; or
  std::optional<ProcessName> process;  // is opened when it is sent
};
using KeptName = std::pair<std::string, std::string>;  // group, name
using KeptItems = std::map<KeptName, Kept>;

// The daemon's end of the keeper (docs/design/keeper.md): starts it when there
// is something to hold, hands it everything again when it has died.
class KeeperLink {
 public:
  // Without a program there is no keeper, and nothing is held.
  KeeperLink(EventLoop& loop, const Clock& clock, std::string socket_path, std::string program);
  ~KeeperLink();

  // What a keeper that an earlier daemon left behind holds; waits for it a
  // second at most. Before anything else.
  std::vector<UniqueFd> Take();

  // The keeper holds these and nothing else. What is new is in its socket when
  // this returns, so it will read it even if we die now.
  void Hold(const KeptItems& items);

  // Descriptors that outlive a process by a time, whatever becomes of us: first the process
  // (`pidfd`), then what is held for it. A group is one process's. False: no keeper has got them.
  bool Watch(const std::string& group, int pidfd);
  bool Linger(const std::string& group, unsigned number, std::span<const int> fds, Time time);
  // Changes the time of what it holds; `dead`: their program is gone though the process lives.
  bool LingerFor(const std::string& group, Time time, bool dead);
  bool Release(const std::string& group);
  // Groups that an earlier daemon has left to linger, as Take() found them.
  std::vector<std::string> TakeLingering() { return std::exchange(lingering_, {}); }

  // Whether it still lives is looked at now: its end may be about to be told.
  void Look();

  // The keeper has died or was hung up on: the time to say Hold again.
  std::function<void()> on_lost;
  // A keeper was found, which may know nothing.
  std::function<void()> on_connected;
  // It hung up, as one that dies, or is not there any more: nothing of what it held is held.
  std::function<void()> on_gone;

 private:
  bool Connect();
  bool Start();
  void Lost(const std::string& why);
  void Gone(const std::string& why);
  // Finds one, or starts one, but not twice in a second.
  bool BeConnected();
  bool Send(unsigned type, const KeptName& name, const Kept* item);
  bool SendFrame(const gpumux_keeper_frame& frame, std::span<const int> fds);
  void Readable();

  EventLoop& loop_;
  const Clock& clock_;
  std::string socket_path_;
  std::string program_;
  ipc::SeqpacketSocket socket_;
  EventLoop::Watch watch_;
  std::set<KeptName> told_;
  bool forgotten_ = false;  // told to forget what others had sent
  std::optional<Time> not_before_;
  std::vector<std::string> lingering_;
};

}  // namespace gpumux::daemon
