// SPDX-License-Identifier: Apache-2.0
#include "daemon/cpu_affinity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <nlohmann/json.hpp>

#include "daemon/tenants.h"

namespace gpumux::daemon {

namespace {

using Json = nlohmann::ordered_json;

CpuList AllowedTo(pid_t pid) {
  // Not glibc's: its set has 1024 processors.
  std::vector<unsigned long> words(kMaxCpus / (sizeof(unsigned long) * CHAR_BIT));
  const long bytes =
      ::syscall(SYS_sched_getaffinity, pid, words.size() * sizeof(unsigned long), words.data());
  return bytes > 0 ? CpusOfWords(words) : CpuList{};
}

}  // namespace

Json NearJson(const std::vector<size_t>& gpus, const Machine& machine) {
  CpuList cpus, nodes;
  Json json{{"near_cpus", nullptr}, {"near_memory_nodes", nullptr}, {"near_by", nullptr}};
  for (const size_t index : gpus) {
    const GpuState& gpu = *machine.gpus()[index];
    if (!gpu.near) {
      // With one unknown, the others' processors would be far from it.
      json["near_cpus_reason"] = gpu.near.error().message;
      json["near_memory_nodes_reason"] = json["near_by_reason"] = json["near_cpus_reason"];
      return json;
    }
    cpus = Union(cpus, gpu.near->cpus);
    nodes = Union(nodes, gpu.near->memory_nodes);
    json["near_by"] = gpu.near->source;
  }
  json["near_cpus"] = FormatCpuList(cpus);
  if (nodes.empty())
    json["near_memory_nodes_reason"] = "the machine does not tell";
  else
    json["near_memory_nodes"] = FormatCpuList(nodes);
  return json;
}

Json CpuAffinityJson(const Tenant& tenant, const Machine& machine) {
  Json json{{"asked", tenant.request.near_gpu ? "auto" : "none"}};
  json.update(NearJson(tenant.gpus, machine));
  json["cpus"] = nullptr;
  const bool lives = tenant.child && !tenant.child_ended && NameProcess(tenant.child->pid) == tenant.child;
  const CpuList cpus = lives ? AllowedTo(tenant.child->pid) : CpuList{};
  if (cpus.empty())
    json["cpus_reason"] = lives ? "the kernel does not tell" : "its program does not run";
  else
    json["cpus"] = FormatCpuList(cpus);
  return json;
}

}  // namespace gpumux::daemon
