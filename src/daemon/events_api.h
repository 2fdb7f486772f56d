// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "daemon/api_server.h"
#include "daemon/event_loop.h"
#include "daemon/events.h"
#include "daemon/machine.h"

namespace gpumux::daemon {

// Which events somebody asks for.
struct EventQuery {
  uint64_t after = 0;                         // numbers above this
  std::optional<std::chrono::seconds> since;  // and not older than so long
  std::string tenant;                         // id or name; empty: all
  std::optional<gpu::Uuid> gpu;
  std::chrono::seconds wait{0};  // for the first, if there is none yet
};

// kInvalid, kNotFound (no such GPU). `text` is what stood behind '?': anything.
Result<EventQuery> ParseEventQuery(std::string_view text, const Machine& machine);

// GET /v1/events. Who asks with wait_seconds is answered when something happens,
// so that following costs neither side anything meanwhile.
class EventsApi {
 public:
  static constexpr size_t kMostInAnAnswer = 1000;
  static constexpr std::chrono::seconds kMaxWait{60};
  // Connections are bounded too (api_server.h); these are those that wait.
  static constexpr size_t kMaxWaiting = 1024;
  static constexpr size_t kMaxWaitingOfStranger = 8;

  EventsApi(EventLog& events, const Machine& machine, EventLoop& loop, const Clock& clock);

  void Handle(const ApiServer::Request& request, ApiServer::Reply reply);

 private:
  struct Follower {
    EventQuery query;
    uid_t uid = 0;
    ApiServer::Reply reply;
    EventLoop::Watch timeout;
  };

  std::vector<const Event*> Find(const EventQuery& query) const;
  std::string Body(const EventQuery& query, const std::vector<const Event*>& found) const;
  void AnswerFollowers();

  EventLog& events_;
  const Machine& machine_;
  EventLoop& loop_;
  const Clock& clock_;
  std::list<Follower> followers_;
  bool answer_posted_ = false;
};

}  // namespace gpumux::daemon
