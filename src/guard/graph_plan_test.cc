// SPDX-License-Identifier: Apache-2.0
#include "guard/graph_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gpumux::guard {
namespace {

constexpr int64_t kBudgetNs = 100'000;

using Edges = std::vector<GraphPlan::Edge>;

Edges Chain(uint32_t nodes) {
  Edges edges;
  for (uint32_t i = 0; i + 1 < nodes; i++) edges.push_back({i, i + 1});
  return edges;
}

std::vector<uint32_t> CutsOf(const GraphPlan& plan) {
  std::vector<uint32_t> nodes;
  for (size_t i = 0; i < plan.cuts(); i++) nodes.push_back(plan.NodeAt(i));
  return nodes;
}

std::vector<uint32_t> BeforeOf(const GraphPlan& plan, size_t cut, const Edges& edges, size_t nodes) {
  std::vector<uint32_t> out(nodes);
  out.resize(plan.Before(cut, edges.data(), edges.size(), out.data()));
  return out;
}

TEST(GraphPlan, AChainIsCutEachBudget) {
  const Edges edges = Chain(20);
  const std::vector<int64_t> ns(20, 20'000);
  GraphPlan plan;
  ASSERT_TRUE(plan.Make(20, edges.data(), edges.size(), ns.data(), kBudgetNs));
  EXPECT_EQ(CutsOf(plan), (std::vector<uint32_t>{5, 10, 15}));
  EXPECT_EQ(BeforeOf(plan, 0, edges, 20), std::vector<uint32_t>{4});
}

TEST(GraphPlan, AShortOneIsNotCut) {
  const Edges edges = Chain(4);
  const std::vector<int64_t> ns(4, 10'000);
  GraphPlan plan;
  ASSERT_TRUE(plan.Make(4, edges.data(), edges.size(), ns.data(), kBudgetNs));
  EXPECT_EQ(plan.cuts(), 0u);
}

// What is side by side may wait for each other: one of them runs on.
TEST(GraphPlan, OfBranchesTheLastOneAloneIsCut) {
  const Edges edges = {{0, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 5}, {4, 5}, {5, 6}};
  const std::vector<int64_t> ns(7, 300'000);
  GraphPlan plan;
  ASSERT_TRUE(plan.Make(7, edges.data(), edges.size(), ns.data(), kBudgetNs));
  const auto cuts = CutsOf(plan);
  ASSERT_EQ(cuts.size(), 3u);
  EXPECT_TRUE(cuts[0] == 3 || cuts[0] == 4) << cuts[0];
  EXPECT_EQ(cuts[1], 5u);
  EXPECT_EQ(cuts[2], 6u);
  auto before = BeforeOf(plan, 1, edges, 7);
  std::sort(before.begin(), before.end());
  EXPECT_EQ(before, (std::vector<uint32_t>{3, 4}));
}

TEST(GraphPlan, WhatIsNoAcyclicGraphIsRefused) {
  const std::vector<int64_t> ns(3, 1);
  const Edges circle = {{0, 1}, {1, 2}, {2, 0}}, itself = {{1, 1}}, elsewhere = {{0, 3}};
  for (const Edges& edges : {circle, itself, elsewhere}) {
    GraphPlan plan;
    EXPECT_FALSE(plan.Make(3, edges.data(), edges.size(), ns.data(), kBudgetNs));
  }
  GraphPlan plan;
  EXPECT_FALSE(plan.Make(0, nullptr, 0, nullptr, kBudgetNs));
}

std::vector<std::vector<bool>> Reach(size_t nodes, const Edges& edges) {
  std::vector<std::vector<bool>> reach(nodes, std::vector<bool>(nodes));
  for (const auto& edge : edges) reach[edge.from][edge.to] = true;
  for (size_t k = 0; k < nodes; k++)
    for (size_t i = 0; i < nodes; i++)
      for (size_t j = 0; reach[i][k] && j < nodes; j++)
        if (reach[k][j]) reach[i][j] = true;
  return reach;
}

TEST(GraphPlan, OfAnyGraphCutsAddNoOrder) {
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same each time
  size_t cuts = 0;
  for (int round = 0; round < 600; round++) {
    const size_t nodes = 1 + random() % 24;
    // Any order of the numbers, so that they are not sorted already.
    std::vector<uint32_t> name(nodes);
    for (uint32_t i = 0; i < nodes; i++) name[i] = i;
    std::shuffle(name.begin(), name.end(), random);
    Edges edges;
    for (uint32_t i = 0; i < nodes; i++)
      for (uint32_t j = i + 1; j < nodes; j++)
        if (random() % 3 == 0 || (random() % 2 == 0 && j == i + 1)) edges.push_back({name[i], name[j]});
    std::shuffle(edges.begin(), edges.end(), random);
    std::vector<int64_t> ns(nodes);
    for (int64_t& value : ns) value = random() % 5 == 0 ? 0 : static_cast<int64_t>(random() % 150'000);
    GraphPlan plan;
    ASSERT_TRUE(plan.Make(nodes, edges.data(), edges.size(), ns.data(), kBudgetNs));
    cuts += plan.cuts();
    // With the cuts as nodes: who comes after whom among the others is as before.
    Edges all = edges;
    for (size_t cut = 0; cut < plan.cuts(); cut++) {
      const auto node = static_cast<uint32_t>(nodes + cut);
      const auto before = BeforeOf(plan, cut, edges, nodes);
      EXPECT_FALSE(before.empty()) << "nothing ends before it";
      for (const uint32_t end : before) all.push_back({end, node});
      all.push_back({node, plan.NodeAt(cut)});
    }
    const auto was = Reach(nodes, edges), is = Reach(nodes + plan.cuts(), all);
    for (size_t i = 0; i < nodes; i++)
      for (size_t j = 0; j < nodes; j++) EXPECT_EQ(is[i][j], was[i][j]) << i << " before " << j;
    // And all that does not come before a cut's node comes after it, or runs beside what is before.
    for (size_t cut = 0; cut < plan.cuts(); cut++) EXPECT_FALSE(is[nodes + cut][nodes + cut]) << "a circle";
  }
  EXPECT_GT(cuts, 500u);
}

}  // namespace
}  // namespace gpumux::guard
