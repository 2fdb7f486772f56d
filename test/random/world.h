// SPDX-License-Identifier: Apache-2.0
//
// Where random programs run: one software GPU, one daemon, a few tenants whose
// processes do one step at a time, and a model of a few lines that says what
// the books must show. The model knows nothing of how the guard rounds: what
// the device took is NVML's figure, read by a process without a guard, and the
// rest is what the documents state (docs/design/guard.md, "What it charges").
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../support/sandbox.h"
#include "host.h"
#include "program.h"

namespace gpumux::test {

class World {
 public:
  ~World();

  // Starts tenants, runs the steps, ends all. Nullopt: every check held; else
  // what did not, and everything that was done before.
  std::optional<std::string> Run(const Program& program);

 private:
  struct Thing {  // what an actor holds
    std::string family;
    uint64_t bytes = 0;
    int context = 0;  // id of the context it ends with; 0: the primary
    bool mapped = false, released = false;
    int share = 0;  // exported or imported: number of the share
  };
  struct Actor {
    pid_t pid = 0;
    int fd = -1;
    size_t tenant = 0;
    bool initialised = false;  // cuInit was called
    bool has_context = false;
    bool after_fork = false;    // forked when CUDA was in use: it does not work here
    std::set<pid_t> inherited;  // whose connections to the driver it holds open
    uint64_t limits_bytes[3] = {};
    std::map<int, Thing> things;
    unsigned Contexts() const;
    // Charged, and not in NVML's figure of the process.
    uint64_t StatedBytes() const;
  };
  struct Tenant {
    std::string name;
    uint64_t limit_bytes;
    Process run;
  };
  // Memory that a sibling opened stays the importers' when its owner is gone.
  struct Share {
    size_t tenant = 0;
    uint64_t bytes = 0;
    bool owner_gone = false;
    unsigned importers = 0;
  };
  struct Call {
    Actor* actor;
    int id;
    Thing thing;
    bool frees;
  };

  std::optional<Actor> Accept(pid_t pid = 0);
  int Do(Actor& actor, const std::string& line);

  // --- steps
  void Start();
  void Execute(const Step& step);
  void Init(Actor& actor);
  void Allocate(Actor& actor, const Step& step);
  Call ChooseCall(Actor& actor, const Step& step, bool may_make_context);
  void Settle(const Call& call, int code);
  void FreeOne(Actor& actor, const Step& step);
  void FreeWrongly(Actor& actor, const Step& step);
  void MapOne(Actor& actor, const Step& step);
  void SetLimit(Actor& actor, const Step& step);
  void ResetPrimary(Actor& actor);
  void ShareOne(Actor& actor, const Step& step);
  void AskFree(Actor& actor);
  void Fork(Actor& actor);
  void Exec(Actor& actor);
  void Die(Actor& actor, const Step& step);
  void Burst(const Step& step);
  void End();

  // --- the model
  void Forget(const Thing& thing);
  void ForgetAll(Actor& actor);
  uint64_t MovedBytes(size_t tenant) const;
  // What the device would have to give, at the most.
  static uint64_t NeedBytes(const Thing& thing);
  void CheckRefusal(const Actor& actor, uint64_t need_bytes);
  void CheckCap();
  void CheckBooks();
  // Empty, or what is wrong in the books.
  std::string Compare(const nlohmann::json& status, const std::map<pid_t, uint64_t>& nvml) const;
  void CheckEmpty();

  Actor* Choose(uint32_t number, bool with_context);
  void Note(const std::string& text) { log_ += text + "\n"; }
  void Fail(const std::string& what) {
    if (!failure_) failure_ = what;
  }

  Sandbox box_;
  Host host_{box_};
  std::vector<Tenant> tenants_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::map<int, Share> shares_;
  int next_id_ = 1;
  int programs_ = 0;
  // By how much the books may differ after steps at the same moment.
  uint64_t loose_bytes_ = 0;
  std::string log_;
  std::optional<std::string> failure_;
};

}  // namespace gpumux::test
