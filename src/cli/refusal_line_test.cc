// SPDX-License-Identifier: Apache-2.0
#include "cli/refusal_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/units.h"

namespace gpumux::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

std::string Reason(const Json& refusals) { return RefusalReason({{"refusals", refusals}}, nullptr); }

Json Refused(const char* cause) {
  return {{"own_limit", cause == std::string("own_limit") ? 2 : 0},
          {"device_full", cause == std::string("own_limit") ? 0 : 2},
          {"last_refused_bytes", 3 * kGiB},
          {"last",
           {{"cause", cause},
            {"gpu_index", 1},
            {"mem_asked_bytes", 3 * kGiB},
            {"mem_guaranteed_bytes", 4 * kGiB},
            {"mem_limit_bytes", 8 * kGiB},
            {"mem_used_bytes", 6 * kGiB},
            {"gpu_mem_total_bytes", 140 * kGiB},
            {"gpu_mem_promisable_bytes", 1 * kGiB},
            {"gpu_mem_unexplained_bytes", 2 * kMiB},
            {"holders", Json::array({{{"name", "a"}, {"owner", "ann"}, {"mem_held_bytes", 70 * kGiB}}})},
            {"more_holders", 0},
            {"unmanaged", Json::array()},
            {"more_unmanaged", 0}}}};
}

TEST(RefusalReason, OfItsOwnLimit) {
  EXPECT_EQ(RefusalCount(Refused("own_limit")), "2 refusals (the last of 3.0 GiB on GPU 1)");
  EXPECT_EQ(
      Reason(Refused("own_limit")),
      "its limit of 8.0 GiB was the reason, of which 6.0 GiB were in use; ask for more: --mem 4GiB:9GiB");
  Json small = Refused("own_limit");
  small["last"].update({{"mem_guaranteed_bytes", kGiB},
                        {"mem_limit_bytes", kGiB},
                        {"mem_used_bytes", 600 * kMiB},
                        {"mem_asked_bytes", 700 * kMiB}});
  EXPECT_THAT(Reason(small), HasSubstr("ask for more: --mem 1536MiB"));
  small["last"]["mem_asked_bytes"] = 200 * kGiB;
  EXPECT_THAT(Reason(small), HasSubstr("200.6 GiB in all are more than the GPU's 140.0 GiB"));
}

TEST(RefusalReason, OfAFullGpuNamesTheLargestHoldersAndThoseOutside) {
  Json full = Refused("gpu_full");
  EXPECT_EQ(Reason(full),
            "the GPU had no room left beside other promises. 4.0 GiB were guaranteed to it, 6.0 GiB in use, "
            "and 1.0 GiB "
            "were free for all; the rest is held by a (of ann) 70.0 GiB; have it guaranteed, which waits "
            "until there is "
            "room: --mem 9GiB");
  full["last"]["unmanaged"] =
      Json::array({{{"pid", 812}, {"name", "Xorg"}, {"owner", "root"}, {"mem_used_bytes", kGiB}},
                   {{"pid", 9}, {"name", nullptr}, {"owner", nullptr}, {"mem_used_bytes", nullptr}}});
  full["last"]["gpu_mem_unexplained_bytes"] = 5 * kGiB;
  full["last"]["more_holders"] = 3;
  EXPECT_THAT(
      Reason(full),
      HasSubstr(
          "held by pid 812 (Xorg, of root, outside gpumux) 1.0 GiB, pid 9 (outside gpumux) an unknown part, "
          "a (of ann) 70.0 GiB and 4 more;"));
}

// Of a tenant that runs on two GPUs, each with so much left to promise.
std::string ReasonWhile(const char* cause, uint64_t free_bytes, const Json& changes = {}) {
  Json tenant{{"id", "t-1"}, {"state", "running"}, {"mode", "timeslice"}, {"refusals", Refused(cause)}};
  Json gpus = Json::array();
  for (const char* uuid : {"GPU-a", "GPU-b"}) {
    tenant["gpus"].push_back(
        {{"uuid", uuid}, {"mem_guaranteed_bytes", 4 * kGiB}, {"mem_used_bytes", 6 * kGiB}});
    gpus.push_back({{"uuid", uuid}, {"mem_promisable_bytes", free_bytes}});
  }
  if (!changes.is_null()) tenant.merge_patch(changes);
  return RefusalReason(tenant, gpus);
}

TEST(RefusalReason, NamesSetWhereATenantThatRunsWouldBeGivenIt) {
  // The limit alone promises nobody's bytes.
  EXPECT_THAT(ReasonWhile("own_limit", 0),
              HasSubstr("; there is room for more: gpumux set t-1 --mem 4GiB:9GiB"));
  // 9 GiB guaranteed are 3 GiB more than it uses, on each of its GPUs.
  EXPECT_THAT(ReasonWhile("gpu_full", 3 * kGiB),
              HasSubstr("; there is room for more: gpumux set t-1 --mem 9GiB"));
  EXPECT_THAT(ReasonWhile("gpu_full", 3 * kGiB - 1), HasSubstr("waits until there is room: --mem 9GiB"));
  for (const Json& change :
       {Json{{"state", "starting"}}, Json{{"state", "stopping"}}, Json{{"ended", {{"why", "exited"}}}},
        Json{{"mode", "exclusive"}}, Json{{"reservation_pid", 7}}, Json{{"gpus", Json::array()}},
        Json{{"gpus", Json::array({{{"uuid", "GPU-c"}}})}}})
    EXPECT_THAT(ReasonWhile("own_limit", 100 * kGiB, change), Not(HasSubstr("gpumux set"))) << change;
}

TEST(RefusalReason, OfTheDriverSaysWhatToDo) {
  Json driver = Refused("driver");
  EXPECT_THAT(Reason(driver), HasSubstr("may be in pieces too small"));
  driver["last"]["unmanaged"] = Json::array({{{"pid", 812}}});
  EXPECT_THAT(Reason(driver), HasSubstr("end what runs outside gpumux"));
}

TEST(RefusalReason, SurvivesAnything) {
  EXPECT_THAT(Reason(Json()), IsEmpty());
  EXPECT_EQ(RefusalCount(Json(7)), "0 refusals");
  for (const char* cause : {"own_limit", "gpu_full", "driver"}) {
    for (const auto& [key, unused] : Refused(cause)["last"].items()) {
      for (const Json& wrong : {Json(), Json(-1), Json("\n"), Json::array({7}), Json(UINT64_MAX)}) {
        Json refusals = Refused(cause);
        refusals["last"][key] = wrong;
        EXPECT_THAT(Reason(refusals), Not(IsEmpty()));
        EXPECT_THAT(Reason(refusals), Not(HasSubstr("\n")));
      }
    }
  }
}

}  // namespace
}  // namespace gpumux::cli
