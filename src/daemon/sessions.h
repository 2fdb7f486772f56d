// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "daemon/credit_desk.h"
#include "daemon/fair_turns.h"
#include "daemon/gates.h"
#include "daemon/held_descriptors.h"
#include "daemon/leases.h"
#include "daemon/reaper.h"
#include "daemon/reclaim.h"
#include "ipc/frame.h"
#include "ipc/seqpacket.h"

namespace gpumux::daemon {

// The session socket: guards and `run`s connect, send frames, get answers.
// Whoever sends what is not of the protocol, does not read, or says nothing at
// all is disconnected and counted.
class Sessions {
 public:
  Sessions(Machine& machine, Tenants& tenants, Monitor& monitor, Reaper& reaper, CreditDesk& desk,
           Reclaim& reclaim, HeldDescriptors& held, Leases& leases, FairTurns& turns, EventLoop& loop,
           const Clock& clock);
  ~Sessions();

  // A process asks for a place as a client of MPS (mps_places.h).
  std::function<uint32_t(Tenant& tenant, Member& member, unsigned slot, uint32_t driver_error)> mps_place;

  // A process asks for its gate page, and for those that it may close (gates.h).
  std::function<std::optional<Gates::Answer>(Tenant& tenant, Member& member, uint32_t first,
                                             std::vector<UniqueFd>& own)>
      gate;

  // Also again, when the socket is not `Listening` any more: somebody removed it.
  void Listen(ipc::UnixListener listener);
  bool Listening() const { return listener_.InPlace(); }
  // Hangs up on peers that have not said what they are, or stay after all was said.
  void DropSilent();

  size_t open() const { return sessions_.size(); }
  uint64_t dropped() const { return dropped_; }

 private:
  enum class Kind { kUnknown, kGuard, kListener, kRun };
  struct Session {
    uint64_t id = 0;
    ipc::SeqpacketSocket socket;
    ipc::PeerIdentity peer;
    std::optional<ProcessName> peer_process;  // who had the peer's pid when it was accepted
    EventLoop::Watch watch;
    Kind kind = Kind::kUnknown;
    Time since{};
    bool over = false;  // all was said: it is the peer's to hang up
    // of a guard
    std::string tenant;
    core::ProcessKey process = 0;
    unsigned asks = 0;  // under way
    // of a listener
    bool listens = false;
    // of a run
    bool asked = false;
  };

  void Accept();
  // No descriptor is left: looking again at once would only burn the processor.
  void PauseAccepting();
  bool MayConnect(const ipc::PeerIdentity& peer) const;
  void Watch(Session& session);
  void Readable(uint64_t id);
  // A few frames of the session.
  void Serve(uint64_t id);
  // False: the frame is not acceptable now.
  // `fds`: what came with it.
  bool Handle(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds);
  bool HandleGuard(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds);
  bool HandleRun(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds);
  bool HandleListener(Session& session, const ipc::Frame& frame);
  bool Listen(Session& session, const ipc::Frame& frame);
  bool AskListener(uint64_t id, uint32_t ask, unsigned slot, uint64_t bytes);
  bool Hello(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds);
  // The process had these pages from a daemon that is gone. False: it had not.
  bool TakePages(Tenant& tenant, Member& member, std::vector<UniqueFd>& fds);
  // The ledger has what the process says in its page that it holds, as far as that is
  // possible: nothing of it is on its way between the two. False: it is in the middle of a change.
  bool TakeAccount(Tenant& tenant, Member& member);
  bool Credit(Session& session, const ipc::Frame& frame, bool context);
  bool MemoryInfo(Session& session, const ipc::Frame& frame);
  bool Notice(Session& session, const ipc::Frame& frame);
  bool HoldDescriptors(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds);
  bool MpsPlace(Session& session, const ipc::Frame& frame);
  bool Gate(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds);
  bool ProcessList(Session& session, const ipc::Frame& frame);
  void RefuseGuard(Session& session, uint32_t request_id, uint32_t reason, const std::string& text);

  // What a session's tenant and process are now; false when they are gone.
  bool Find(const Session& session, Tenant** tenant, Member** member);
  bool Send(uint64_t id, std::span<const std::byte> packet, std::span<const int> fds = {});
  // A reply that would block means a peer that does not read.
  void Drop(uint64_t id, const char* why);
  void Over(uint64_t id);
  void Close(uint64_t id);

  Machine& machine_;
  Tenants& tenants_;
  Monitor& monitor_;
  Reaper& reaper_;
  CreditDesk& desk_;
  Reclaim& reclaim_;
  HeldDescriptors& held_;
  Leases& leases_;
  FairTurns& turns_;
  EventLoop& loop_;
  const Clock& clock_;
  ipc::UnixListener listener_;
  EventLoop::Watch listen_watch_, accept_again_;
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  std::map<pid_t, unsigned> by_pid_;
  std::map<uid_t, size_t> by_uid_;
  const size_t max_per_stranger_;  // of a user who is not the daemon's
  uint64_t next_id_ = 1;
  uint64_t dropped_ = 0;
  // A peer that connects for ever must not fill the disk with lines.
  Time log_second_{};
  unsigned logged_ = 0;
};

}  // namespace gpumux::daemon
