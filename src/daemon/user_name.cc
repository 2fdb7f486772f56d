// SPDX-License-Identifier: Apache-2.0
#include "daemon/user_name.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

namespace gpumux::daemon {

namespace {

using Steady = std::chrono::steady_clock;

constexpr auto kRemembered = std::chrono::minutes(1);
constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kPatienceWithOldAnswer = std::chrono::milliseconds(50);
// A hostile user may come as many (user namespaces); the rest goes by number.
constexpr size_t kMostUnderWay = 8;
constexpr size_t kMostRemembered = 4096;
constexpr size_t kLargestEntry = 1 << 20;
constexpr int kMostGroups = 65536;

// Calls `look` with a growing buffer, as getpwuid_r and getgrgid_r want it.
template <typename Look>
bool WithBuffer(const Look& look) {
  for (size_t size = 4096; size <= kLargestEntry; size *= 4) {
    std::vector<char> buffer(size);
    const int error = look(buffer);
    if (error != ERANGE) return error == 0;
  }
  return false;
}

std::string GroupName(gid_t gid) {
  std::string name = std::to_string(gid);
  WithBuffer([&](std::vector<char>& buffer) {
    group entry{};
    group* found = nullptr;
    const int error = getgrgid_r(gid, &entry, buffer.data(), buffer.size(), &found);
    if (error == 0 && found) name = found->gr_name;
    return error;
  });
  return name;
}

// As long as it takes.
Account LookUp(uid_t uid) {
  Account account{.name = std::to_string(uid), .groups = {}};
  std::optional<gid_t> own_group;
  WithBuffer([&](std::vector<char>& buffer) {
    passwd entry{};
    passwd* found = nullptr;
    const int error = getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
    if (error == 0 && found) {
      account.name = found->pw_name;
      own_group = found->pw_gid;
    }
    return error;
  });
  if (!own_group) return account;
  int count = 64;
  std::vector<gid_t> groups(static_cast<size_t>(count));
  while (getgrouplist(account.name.c_str(), *own_group, groups.data(), &count) < 0 && count < kMostGroups) {
    count = std::max(count, static_cast<int>(groups.size()) * 2);
    groups.resize(static_cast<size_t>(count));
  }
  groups.resize(std::min(groups.size(), static_cast<size_t>(std::max(count, 0))));
  for (const gid_t gid : groups) account.groups.push_back(GroupName(gid));
  std::sort(account.groups.begin(), account.groups.end());
  account.groups.erase(std::unique(account.groups.begin(), account.groups.end()), account.groups.end());
  return account;
}

// Shared with the threads that look up: one of them may outlive the caller.
struct Answers {
  struct Entry {
    std::optional<Account> account;
    Steady::time_point at{};
    bool under_way = false;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uid_t, Entry> entries;
  size_t under_way = 0;
};

std::shared_ptr<Answers> TheAnswers() {
  static const auto answers = std::make_shared<Answers>();
  return answers;
}

// With the lock held. False: no thread could be had.
bool StartLookUp(const std::shared_ptr<Answers>& answers, uid_t uid) {
  if (answers->under_way >= kMostUnderWay) return false;
  try {
    std::thread([answers, uid] {
      Account account = LookUp(uid);
      const std::lock_guard lock(answers->mutex);
      Answers::Entry& entry = answers->entries[uid];
      entry.account = std::move(account);
      entry.at = Steady::now();
      entry.under_way = false;
      --answers->under_way;
      answers->changed.notify_all();
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  ++answers->under_way;
  return true;
}

}  // namespace

Account AccountOf(uid_t uid) {
  const auto answers = TheAnswers();
  std::unique_lock lock(answers->mutex);
  if (answers->entries.size() >= kMostRemembered)
    std::erase_if(answers->entries, [](const auto& each) { return !each.second.under_way; });
  Answers::Entry& entry = answers->entries[uid];
  const std::optional<Account> old = entry.account;
  if (old && Steady::now() - entry.at < kRemembered) return *old;
  // Who waited in vain once does not wait again for the same answer.
  if (!entry.under_way && (entry.under_way = StartLookUp(answers, uid))) {
    const auto under_way = [&] {
      const auto it = answers->entries.find(uid);
      return it != answers->entries.end() && it->second.under_way;
    };
    const auto patience = old ? Steady::duration(kPatienceWithOldAnswer) : Steady::duration(kPatience);
    answers->changed.wait_for(lock, patience, [&] { return !under_way(); });
  }
  const auto it = answers->entries.find(uid);
  if (it != answers->entries.end() && it->second.account) return *it->second.account;
  return {.name = std::to_string(uid), .groups = {}, .known = false};
}

std::string UserName(uid_t uid) { return AccountOf(uid).name; }

bool IsStranger(uid_t uid) { return uid != 0 && uid != ::getuid(); }

}  // namespace gpumux::daemon
