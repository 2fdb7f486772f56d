// SPDX-License-Identifier: Apache-2.0
//
// The model of a world of random programs, and the comparison with what the
// daemon shows.
#include <algorithm>
#include <thread>

#include "world.h"

namespace gpumux::test {

namespace {

using nlohmann::json;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPage = 2 * kMiB;
constexpr uint64_t kPoolStep = 32 * kMiB;
constexpr uint64_t kSmall = kMiB;
// An H200's (docs/results): a context in the process's own figure, and what the
// device shows beyond it.
constexpr uint64_t kContext = 543162368;
constexpr uint64_t kContextShare = 5832704;

uint64_t Up(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

int World::Do(Actor& actor, const std::string& line) {
  const std::string answer = host_.Ask(actor.fd, line);
  Note(tenants_[actor.tenant].name + " pid " + std::to_string(actor.pid) + ": " + line + " -> " + answer);
  int code = -1;
  if (sscanf(answer.c_str(), "%d", &code) != 1) Fail("a process did not answer: " + line);
  return code;
}

// --- the model ------------------------------------------------------------------

unsigned World::Actor::Contexts() const {
  unsigned contexts = has_context ? 1 : 0;
  for (const auto& [id, thing] : things) contexts += thing.family == "context";
  return contexts;
}

uint64_t World::Actor::StatedBytes() const {
  uint64_t bytes = limits_bytes[1] + limits_bytes[2];
  for (const auto& [id, thing] : things) {
    if (thing.family == "managed") bytes += Up(thing.bytes, kPage);
  }
  return bytes;
}

void World::Forget(const Thing& thing) {
  if (!thing.share) return;
  Share& share = shares_[thing.share];
  if (thing.family == "import") {
    --share.importers;
  } else {
    share.owner_gone = true;
  }
  if (share.owner_gone && share.importers == 0) shares_.erase(thing.share);
}

void World::ForgetAll(Actor& actor) {
  for (const auto& [id, thing] : actor.things) Forget(thing);
  actor.things.clear();
  for (uint64_t& bytes : actor.limits_bytes) bytes = 0;
  actor.has_context = false;
}

uint64_t World::MovedBytes(size_t tenant) const {
  uint64_t sum = 0;
  for (const auto& [number, share] : shares_) {
    if (share.tenant == tenant && share.owner_gone) sum += share.bytes;
  }
  return sum;
}

uint64_t World::NeedBytes(const Thing& thing) {
  const std::string& f = thing.family;
  if (f == "context") return kContext + kContextShare;
  if (f == "async" || f == "pool") return Up(thing.bytes, kPoolStep);
  if (f == "graph") return Up(thing.bytes, kPoolStep) + kPage;                // and its nodes
  if (f == "pitch") return Up((thing.bytes / 100'000 + 1) * 100'352, kPage);  // rows at multiples of 512
  if (f == "array") return Up(thing.bytes + 128 * 262144, kPage);             // tiles of up to 8 x 16 rows
  return Up(std::max(thing.bytes, kSmall), kPage);
}

void World::CheckRefusal(const Actor& actor, uint64_t need_bytes) {
  const json tenant = host_.Tenant(tenants_[actor.tenant].name);
  if (tenant.is_null()) return Fail("the tenant is gone");
  const uint64_t taken =
      tenant["mem_used_bytes"].get<uint64_t>() + tenant["mem_allowance_bytes"].get<uint64_t>();
  const uint64_t limit = tenants_[actor.tenant].limit_bytes;
  if (taken + need_bytes <= limit)
    Fail("refused " + std::to_string(need_bytes) + " bytes with " + std::to_string(limit - taken) + " free");
}

void World::CheckCap() {
  const auto nvml = host_.Nvml();
  std::vector<uint64_t> sums(tenants_.size());
  for (const auto& actor : actors_) {
    const auto own = nvml.find(actor->pid);
    if (own != nvml.end()) sums[actor->tenant] += own->second + actor->Contexts() * kContextShare;
  }
  for (size_t i = 0; i < tenants_.size(); ++i) {
    if (sums[i] > tenants_[i].limit_bytes + MovedBytes(i))
      Fail(tenants_[i].name + " holds " + std::to_string(sums[i]) + " bytes, above its limit");
  }
}

std::string World::Compare(const json& status, const std::map<pid_t, uint64_t>& nvml) const {
  if (status.is_null()) return "no status";
  const json& gpu = status["gpus"][0];
  if (gpu["mem_unmanaged_bytes"] != 0) return "unmanaged bytes: " + gpu["mem_unmanaged_bytes"].dump();
  for (size_t i = 0; i < tenants_.size(); ++i) {
    uint64_t device = 0, contexts = 0, stated = 0, asked = 0;
    bool lives = false, all_found = true;
    for (const auto& actor : actors_) {
      if (actor->tenant != i) continue;
      lives = true;
      contexts += actor->Contexts();
      stated += actor->StatedBytes();
      const auto own = nvml.find(actor->pid);
      if (own != nvml.end()) device += own->second;
      all_found &= (own != nvml.end()) == (actor->Contexts() > 0);
      for (const auto& [id, thing] : actor->things) asked += thing.family == "import" ? 0 : thing.bytes;
    }
    if (!lives) continue;
    if (!all_found) return tenants_[i].name + ": NVML's list and the model differ";
    const auto found = std::find_if(status["tenants"].begin(), status["tenants"].end(),
                                    [&](const json& t) { return t["name"] == tenants_[i].name; });
    if (found == status["tenants"].end()) return tenants_[i].name + " is gone";
    const uint64_t used = (*found)["mem_used_bytes"];
    const uint64_t allowance = (*found)["mem_allowance_bytes"];
    uint64_t committed = 0;
    for (const json& member : (*found)["members"]) {
      if (!member["alive"].get<bool>()) return "a dead process keeps its bytes";
      committed += member["gpus"][0]["mem_committed_bytes"].get<uint64_t>();
    }
    const uint64_t moved = MovedBytes(i), limit = tenants_[i].limit_bytes;
    const uint64_t truth = device - contexts * kContext + stated - moved;
    const auto differs = [&](const char* what, uint64_t is, uint64_t should) {
      return tenants_[i].name + ": " + what + " " + std::to_string(is) + ", should be " +
             std::to_string(should);
    };
    if (committed + loose_bytes_ < truth || committed > truth + loose_bytes_)
      return differs("committed", committed, truth);
    const uint64_t charged = device + contexts * kContextShare + stated;
    // What moved or was missed is found by NVML's figure; it hides behind memory that is
    // charged and not in that figure.
    const uint64_t hidden = std::min(moved + loose_bytes_, stated);
    if (used + hidden < charged || used > charged + loose_bytes_) return differs("used", used, charged);
    if (used + allowance > limit + moved) return differs("used and allowance above the limit", used, limit);
    if (used + hidden < asked) return differs("less used than its processes hold", used, asked);
  }
  return "";
}

void World::CheckBooks() {
  if (failure_) return;
  std::string wrong;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  do {
    const auto nvml = host_.Nvml();
    wrong = Compare(host_.Status(), nvml);
    if (wrong.empty() || failure_) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  } while (std::chrono::steady_clock::now() < end);
  Note(host_.Status().dump());
  Fail(wrong);
}

void World::CheckEmpty() {
  std::string last;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    const json status = host_.Status();
    const json gpu = status.is_null() ? json::object() : status["gpus"][0];
    if (status.is_object() && status["tenants"].empty() && gpu["mem_used_bytes"] == 0 &&
        gpu["mem_guaranteed_bytes"] == 0 && gpu["mem_unmanaged_bytes"] == 0 && host_.Nvml().empty()) {
      return;
    }
    last = status.dump();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < end);
  Fail("not everything came back at the end: " + last);
}

}  // namespace gpumux::test
