// SPDX-License-Identifier: Apache-2.0
#include "world.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace gpumux::test {

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
constexpr int kOutOfMemory = 2;
constexpr size_t kMostActors = 10;
constexpr uint64_t kThreads = 132 * 2048;  // of an H200: each gets its stack

constexpr const char* kFamilies[] = {"plain", "plain", "plain", "pitch", "managed", "async", "async",
                                     "pool",  "pool",  "vmm",   "array", "module",  "graph", "context"};

}  // namespace

World::~World() {
  for (const auto& actor : actors_) ::close(actor->fd);
}

std::optional<World::Actor> World::Accept(pid_t pid) {
  const auto connection = host_.Accept(pid);
  if (!connection) {
    Fail("a process did not connect");
    return std::nullopt;
  }
  Actor actor;
  actor.pid = connection->pid;
  actor.fd = connection->fd;
  return actor;
}

std::optional<std::string> World::Run(const Program& program) {
  log_.clear();
  loose_bytes_ = 0;
  Start();
  for (const Step& step : program.steps) {
    if (failure_) break;
    Execute(step);
    CheckCap();
    CheckBooks();
  }
  if (!failure_) End();
  if (!failure_) return std::nullopt;
  return *failure_ + "\nAfter these steps:\n" + log_;
}

void World::Start() {
  tenants_.clear();
  const struct {
    const char* mem;
    uint64_t limit;
  } promises[] = {{"3GiB", 3 * kGiB}, {"2GiB:4GiB", 4 * kGiB}};
  ++programs_;
  for (const auto& promise : promises) {
    const std::string name = "p" + std::to_string(programs_) + "t" + std::to_string(tenants_.size());
    Process run = box_.Gpumux({"run", "--name", name, "--mem", promise.mem, "--", Host::ActorProgram()});
    auto actor = Accept();
    if (!actor) {
      Fail("a tenant did not start: " + run.Err());
      return;
    }
    actor->tenant = tenants_.size();
    actors_.push_back(std::make_unique<Actor>(*actor));
    tenants_.push_back({name, promise.limit, std::move(run)});
  }
}

void World::End() {
  Note("the end");
  constexpr const char* kWays[] = {"exit", "_exit", "abort", "kill"};
  unsigned way = 0;
  for (const auto& actor : actors_) {
    // No answer comes; the connection ends with the process.
    if (const std::string answer =
            host_.Ask(actor->fd, std::string("die ") + kWays[way++ % std::size(kWays)]);
        !answer.empty())
      Fail("a process did not die: " + answer);
    ::close(actor->fd);
  }
  actors_.clear();
  shares_.clear();
  for (Tenant& tenant : tenants_) tenant.run.Wait();
  CheckEmpty();
}

World::Actor* World::Choose(uint32_t number, bool with_context) {
  std::vector<Actor*> choice;
  for (const auto& actor : actors_) {
    if (actor->has_context || !with_context) choice.push_back(actor.get());
  }
  return choice.empty() ? nullptr : choice[number % choice.size()];
}

void World::Execute(const Step& step) {
  if (step.kind == Kind::kBurst) return Burst(step);
  Actor* actor = Choose(step.actor, false);
  if (!actor) return;
  switch (step.kind) {
    case Kind::kFork:
      return Fork(*actor);
    case Kind::kExec:
      return Exec(*actor);
    case Kind::kDie:
      return Die(*actor, step);
    default:
      break;
  }
  if (actor->after_fork) {
    // Whatever it tries, no byte moves.
    if (Do(*actor, "alloc " + std::to_string(next_id_++) + " plain 1000000 0") == 0)
      Fail("CUDA works in the child of a fork");
    return;
  }
  if (!actor->has_context) return Init(*actor);
  switch (step.kind) {
    case Kind::kAllocate:
      return Allocate(*actor, step);
    case Kind::kFree:
      return FreeOne(*actor, step);
    case Kind::kFreeWrongly:
      return FreeWrongly(*actor, step);
    case Kind::kMap:
      return MapOne(*actor, step);
    case Kind::kSetLimit:
      return SetLimit(*actor, step);
    case Kind::kResetPrimary:
      return ResetPrimary(*actor);
    case Kind::kShare:
      return ShareOne(*actor, step);
    default:
      return AskFree(*actor);
  }
}

void World::Init(Actor& actor) {
  const int code = Do(actor, "init");
  actor.initialised = true;
  if (code == 0) {
    actor.has_context = true;
  } else if (code == kOutOfMemory) {
    CheckRefusal(actor, NeedBytes({.family = "context"}));
  } else {
    Fail("cuInit or the first context failed with " + std::to_string(code));
  }
}

World::Call World::ChooseCall(Actor& actor, const Step& step, bool may_make_context) {
  Call call{&actor, next_id_++, {}, false};
  const size_t families = std::size(kFamilies) - (may_make_context ? 0 : 1);
  call.thing.family = kFamilies[step.a % families];
  call.thing.bytes = call.thing.family == "context" ? 0 : BytesOf(step.b);
  if (call.thing.family == "vmm")
    call.thing.bytes = (call.thing.bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
  const bool of_context = call.thing.family == "plain" || call.thing.family == "array";
  for (const auto& [id, thing] : actor.things) {
    // Now and then in a context of its own, to end with it.
    if (of_context && thing.family == "context" && step.a / 16 % 2) call.thing.context = id;
  }
  return call;
}

void World::Settle(const Call& call, int code) {
  if (code == 0 && call.frees) {
    Forget(call.actor->things[call.id]);
    call.actor->things.erase(call.id);
  } else if (code == 0) {
    call.actor->things[call.id] = call.thing;
  } else if (code != kOutOfMemory || call.frees) {
    Fail((call.frees ? "a free of " : "an allocation of ") + call.thing.family + " failed with " +
         std::to_string(code));
  }
}

void World::Allocate(Actor& actor, const Step& step) {
  const Call call = ChooseCall(actor, step, true);
  const int code = Do(actor, "alloc " + std::to_string(call.id) + " " + call.thing.family + " " +
                                 std::to_string(call.thing.bytes) + " " + std::to_string(call.thing.context));
  Settle(call, code);
  if (code == kOutOfMemory) CheckRefusal(actor, NeedBytes(call.thing));
}

void World::FreeOne(Actor& actor, const Step& step) {
  if (actor.things.empty()) return;
  const auto it = std::next(actor.things.begin(), static_cast<long>(step.a % actor.things.size()));
  const int id = it->first;
  if (Do(actor, "free " + std::to_string(id)) != 0) return Fail("a free failed");
  Forget(it->second);
  actor.things.erase(it);
  std::erase_if(actor.things, [&](auto& each) {
    if (each.second.context != id) return false;
    Forget(each.second);
    return true;
  });
}

void World::FreeWrongly(Actor& actor, const Step& step) {
  uint64_t foreign = 0;
  for (const auto& other : actors_) {
    if (other.get() == &actor || other->things.empty()) continue;
    const std::string answer =
        host_.Ask(other->fd, "address " + std::to_string(other->things.begin()->first));
    (void)sscanf(answer.c_str(), "0 %lu", &foreign);
  }
  if (Do(actor, "wrong " + std::to_string(step.a % 6) + " " + std::to_string(foreign)) == 0)
    Fail("what was not there was freed");
}

void World::MapOne(Actor& actor, const Step& step) {
  std::vector<int> physical;
  for (const auto& [id, thing] : actor.things) {
    if (thing.family == "vmm") physical.push_back(id);
  }
  if (physical.empty()) return;
  const int id = physical[step.a % physical.size()];
  Thing& thing = actor.things[id];
  const std::string number = std::to_string(id);
  if (!thing.mapped) {
    if (Do(actor, "map " + number) != 0) return Fail("a mapping failed");
    thing.mapped = true;
  } else if (!thing.released && step.b % 2) {
    // The mapping keeps the memory.
    if (Do(actor, "release " + number) != 0) return Fail("a release failed");
    thing.released = true;
  } else if (!thing.released) {
    if (Do(actor, "unmap " + number) != 0) return Fail("an unmapping failed");
    thing.mapped = false;
  }
}

void World::SetLimit(Actor& actor, const Step& step) {
  // By the driver's numbers: the stack of a thread, printf's buffer, the heap.
  constexpr uint64_t kDefaults[] = {1024, 7 * kMiB, 8 * kMiB};
  const unsigned which = step.a % 3;
  const uint64_t unit = which == 0 ? 1024 : 2 * kMiB;
  const uint64_t beyond = step.b % (which == 0 ? 4 : 64) * unit;
  const uint64_t bytes = beyond * (which == 0 ? kThreads : 1);
  const int code =
      Do(actor, "limit " + std::to_string(which) + " " + std::to_string(kDefaults[which] + beyond));
  const uint64_t before = actor.limits_bytes[which];
  if (code == 0) {
    actor.limits_bytes[which] = bytes;
  } else if (code == kOutOfMemory) {
    CheckRefusal(actor, bytes > before ? bytes - before : 0);
  } else {
    Fail("a limit failed with " + std::to_string(code));
  }
}

void World::ResetPrimary(Actor& actor) {
  for (const auto& [id, thing] : actor.things) {
    const std::string& f = thing.family;
    // The others outlive a reset, or their fate is not documented.
    if ((f != "plain" && f != "pitch" && f != "array") || thing.share) return;
  }
  const int code = Do(actor, "reset");
  ForgetAll(actor);
  actor.has_context = code == 0;
  if (code == kOutOfMemory) return CheckRefusal(actor, NeedBytes({.family = "context"}));
  if (code != 0) Fail("a reset failed with " + std::to_string(code));
}

void World::ShareOne(Actor& actor, const Step& step) {
  Actor* sibling = nullptr;
  for (const auto& other : actors_) {
    if (other.get() != &actor && other->tenant == actor.tenant && other->has_context) sibling = other.get();
  }
  std::vector<int> whole;
  for (const auto& [id, thing] : actor.things) {
    // Whole pages of the driver, so that the bytes that move are known.
    if (thing.family == "plain" && thing.bytes >= 2 * kMiB && thing.bytes % (2 * kMiB) == 0 && !thing.context)
      whole.push_back(id);
  }
  if (!sibling || whole.empty()) return;
  const int id = whole[step.a % whole.size()];
  Thing& thing = actor.things[id];
  for (const auto& [other_id, other] : sibling->things) {
    if (other.family == "import" && other.share == thing.share) return;  // has it open already
  }
  const std::string answer = host_.Ask(actor.fd, "export " + std::to_string(id));
  char hex[200] = "";
  if (sscanf(answer.c_str(), "0 %199s", hex) != 1) return Fail("an export failed: " + answer);
  const int import = next_id_++;
  if (Do(*sibling, "import " + std::to_string(import) + " " + hex + " " + std::to_string(id) + " " +
                       std::to_string(thing.bytes)) != 0)
    return Fail("an import failed, or read a wrong value");
  if (!thing.share) {
    thing.share = next_id_++;
    shares_[thing.share] = {actor.tenant, thing.bytes, false, 0};
  }
  ++shares_[thing.share].importers;
  sibling->things[import] = {.family = "import", .bytes = thing.bytes, .share = thing.share};
}

void World::AskFree(Actor& actor) {
  const std::string answer = host_.Ask(actor.fd, "told");
  uint64_t free = 0, total = 0;
  if (sscanf(answer.c_str(), "0 %lu %lu", &free, &total) != 2) return Fail("no memory query: " + answer);
  const auto tenant = host_.Tenant(tenants_[actor.tenant].name);
  if (tenant.is_null()) return Fail("the tenant is gone");
  const uint64_t used = tenant["mem_used_bytes"], allowance = tenant["mem_allowance_bytes"];
  const uint64_t rest = total > used + allowance ? total - used - allowance : 0;
  if (total != tenants_[actor.tenant].limit_bytes || free != rest)
    Fail("told " + answer + "; the books say " + std::to_string(used) + " and " + std::to_string(allowance));
}

void World::Fork(Actor& actor) {
  if (actors_.size() >= kMostActors) return;
  const std::string answer = host_.Ask(actor.fd, "fork");
  int pid = 0;
  if (sscanf(answer.c_str(), "0 %d", &pid) != 1) return Fail("no fork: " + answer);
  auto child = Accept(pid);
  if (!child) return;
  Note(tenants_[actor.tenant].name + " pid " + std::to_string(actor.pid) + ": forks " + std::to_string(pid));
  child->tenant = actor.tenant;
  child->after_fork = actor.initialised || actor.after_fork;
  child->inherited = actor.inherited;
  child->inherited.insert(actor.pid);
  actors_.push_back(std::make_unique<Actor>(*child));
}

void World::Exec(Actor& actor) {
  // A driver keeps what a process had as long as a child holds its descriptors.
  for (const auto& other : actors_) {
    if (other->inherited.contains(actor.pid)) return;
  }
  Note(tenants_[actor.tenant].name + " pid " + std::to_string(actor.pid) + ": exec");
  if (const std::string answer = host_.Ask(actor.fd, "exec"); !answer.empty())
    return Fail("no exec: " + answer);
  ::close(actor.fd);
  const auto again = Accept(actor.pid);
  if (!again) return;
  ForgetAll(actor);
  actor.fd = again->fd;
  actor.initialised = actor.after_fork = false;
  actor.inherited.clear();
}

void World::Die(Actor& actor, const Step& step) {
  constexpr const char* kWays[] = {"exit", "_exit", "abort", "kill"};
  const std::string way = kWays[step.a % std::size(kWays)];
  Note(tenants_[actor.tenant].name + " pid " + std::to_string(actor.pid) + ": dies by " + way);
  if (!host_.Ask(actor.fd, "die " + way).empty()) return Fail("it did not die");
  ::close(actor.fd);
  ForgetAll(actor);
  std::erase_if(actors_, [&](const auto& each) { return each.get() == &actor; });
}

void World::Burst(const Step& step) {
  std::vector<Call> calls;
  for (uint32_t i = 0; i < 4; ++i) {
    Actor* actor = Choose(step.actor + i, true);
    if (!actor || std::any_of(calls.begin(), calls.end(), [&](const Call& c) { return c.actor == actor; }))
      continue;
    const uint64_t random = (step.a >> (8 * i)) ^ (step.b << i);
    Call call = ChooseCall(*actor, {step.kind, 0, random, step.b >> (4 * i)}, false);
    if (random % 3 == 0) {
      for (const auto& [id, thing] : actor->things) {
        if (thing.family != "context" && !thing.share) call = {actor, id, thing, true};
      }
    }
    calls.push_back(call);
  }
  for (const Call& call : calls) {
    const std::string number = std::to_string(call.id);
    const std::string line = call.frees ? "free " + number
                                        : "alloc " + number + " " + call.thing.family + " " +
                                              std::to_string(call.thing.bytes) + " " +
                                              std::to_string(call.thing.context);
    Note(tenants_[call.actor->tenant].name + " pid " + std::to_string(call.actor->pid) +
         ": at the same time: " + line);
    host_.Send(call.actor->fd, line);
  }
  CheckCap();
  for (const Call& call : calls) {
    // What is told from the device's free memory alone (small_objects.h,
    // driver_objects.h) may be hidden or feigned by a neighbour, so far.
    const bool small = call.thing.family == "array" || call.thing.family == "module";
    if (small && call.thing.bytes <= kMiB) loose_bytes_ += 2 * kMiB;
    if (call.thing.family == "graph") loose_bytes_ += 16 * kMiB;
    const std::string answer = host_.Receive(call.actor->fd);
    Note("  -> " + answer);
    int code = -1;
    (void)sscanf(answer.c_str(), "%d", &code);
    Settle(call, code);
  }
}

}  // namespace gpumux::test
