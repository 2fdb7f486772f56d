// SPDX-License-Identifier: Apache-2.0
#include "daemon/events_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "daemon/report.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// A tenant's id or name: nothing in it needs escaping.
bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

Status Take(EventQuery& query, std::string_view key, std::string_view value, const Machine& machine) {
  const auto number = Number(value);
  const auto seconds = [&] {
    return std::chrono::seconds(static_cast<int64_t>(std::min<uint64_t>(*number, 1u << 30)));
  };
  if (key == "after" && number) {
    query.after = *number;
  } else if (key == "since_seconds" && number) {
    query.since = seconds();
  } else if (key == "wait_seconds" && number) {
    query.wait = std::min(seconds(), EventsApi::kMaxWait);
  } else if (key == "tenant" && IsName(value)) {
    query.tenant = value;
  } else if (key == "gpu") {
    const auto gpu = machine.FindNamed(value);
    if (!gpu) return tl::unexpected(gpu.error());
    query.gpu = machine.gpus()[*gpu]->device.uuid;
  } else {
    return Fail(Code::kInvalid, fmt::format("\"{}={}\" is no part of a query for events", key, value));
  }
  return {};
}

}  // namespace

Result<EventQuery> ParseEventQuery(std::string_view text, const Machine& machine) {
  EventQuery query;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    const size_t equal = std::min(pair.find('='), pair.size());
    const std::string_view value = pair.substr(std::min(equal + 1, pair.size()));
    if (Status taken = Take(query, pair.substr(0, equal), value, machine); !taken)
      return tl::unexpected(taken.error());
  }
  return query;
}

EventsApi::EventsApi(EventLog& events, const Machine& machine, EventLoop& loop, const Clock& clock)
    : events_(events), machine_(machine), loop_(loop), clock_(clock) {
  // From the loop: whoever notes an event is in the middle of something.
  events_.on_event = [this] {
    if (answer_posted_ || followers_.empty()) return;
    answer_posted_ = true;
    loop_.Post([this] { AnswerFollowers(); });
  };
}

void EventsApi::Handle(const ApiServer::Request& request, ApiServer::Reply reply) {
  const auto fail = [&](const Error& error) { reply({HttpStatus(error.code), Report::ErrorBody(error)}); };
  auto query = ParseEventQuery(request.query, machine_);
  if (!query) return fail(query.error());
  // Of a numbering that there is no more (the audit log was lost): all that is known.
  if (query->after > events_.last_id()) query->after = 0;
  const auto found = Find(*query);
  if (!found.empty() || query->wait.count() == 0) return reply({200, Body(*query, found)});
  const auto of_user = std::count_if(followers_.begin(), followers_.end(),
                                     [&](const Follower& each) { return each.uid == request.peer.uid; });
  if (followers_.size() >= kMaxWaiting ||
      (IsStranger(request.peer.uid) && of_user >= static_cast<ptrdiff_t>(kMaxWaitingOfStranger)))
    return fail({Code::kDenied, "too many wait for events already", "end one of them"});
  const auto follower = followers_.insert(followers_.end(), {*query, request.peer.uid, std::move(reply), {}});
  follower->timeout = loop_.After(query->wait, [this, follower] {
    const Follower over = std::move(*follower);
    followers_.erase(follower);
    over.reply({200, Body(over.query, {})});
  });
}

void EventsApi::AnswerFollowers() {
  answer_posted_ = false;
  std::list<Follower> ready;
  for (auto it = followers_.begin(); it != followers_.end();) {
    const auto next = std::next(it);
    if (!Find(it->query).empty()) ready.splice(ready.end(), followers_, it);
    it = next;
  }
  for (const Follower& follower : ready) follower.reply({200, Body(follower.query, Find(follower.query))});
}

std::vector<const Event*> EventsApi::Find(const EventQuery& query) const {
  const auto& kept = events_.kept();
  std::vector<const Event*> found;
  for (auto it = std::upper_bound(kept.begin(), kept.end(), query.after,
                                  [](uint64_t after, const Event& event) { return after < event.id; });
       it != kept.end() && found.size() < kMostInAnAnswer; ++it) {
    if (query.since && it->at < clock_.WallTime() - *query.since) continue;
    if (!query.tenant.empty() && it->tenant != query.tenant && it->tenant_name != query.tenant) continue;
    if (query.gpu && std::find(it->gpus.begin(), it->gpus.end(), *query.gpu) == it->gpus.end()) continue;
    found.push_back(&*it);
  }
  return found;
}

std::string EventsApi::Body(const EventQuery& query, const std::vector<const Event*>& found) const {
  const bool more = found.size() == kMostInAnAnswer;
  std::string events;
  for (const Event* event : found) events += (events.empty() ? "" : ",") + EventJson(*event);
  const uint64_t next_after = more ? found.back()->id : std::max(query.after, events_.last_id());
  return EnvelopeOf(
      "gpumux.events/1", clock_, machine_.source().simulated,
      fmt::format(R"({{"events":[{}],"more":{},"next_after":{},"first_id":{},"last_id":{}}})", events, more,
                  next_after, events_.kept().empty() ? 0 : events_.kept().front().id, events_.last_id()));
}

}  // namespace gpumux::daemon
