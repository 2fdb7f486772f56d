// SPDX-License-Identifier: Apache-2.0
#include "base/loopback_address.h"

#include <gtest/gtest.h>

namespace gpumux {
namespace {

TEST(LoopbackAddress, IsOneThatNobodyElseReaches) {
  EXPECT_EQ(ParseLoopbackAddress("127.0.0.1:9835")->ToString(), "127.0.0.1:9835");
  EXPECT_EQ(ParseLoopbackAddress("127.255.3.4:1")->port, 1);
  EXPECT_EQ(ParseLoopbackAddress("[::1]:65535")->ToString(), "[::1]:65535");
  EXPECT_TRUE(ParseLoopbackAddress("[::1]:65535")->IsV6());
  for (const char* other : {"",
                            ":",
                            ":9835",
                            "127.0.0.1",
                            "127.0.0.1:",
                            "127.0.0.1:0",
                            "127.0.0.1:65536",
                            "127.0.0.1:-1",
                            "127.0.0.1: 1",
                            "127.0.0.1:1x",
                            "127.0.0.1:1:1",
                            "0.0.0.0:9835",
                            "128.0.0.1:9835",
                            "10.0.0.1:9835",
                            "127.1:9835",
                            "[::]:9835",
                            "::1:9835",
                            "[::1]9835",
                            "[::1",
                            "[]:1",
                            "[127.0.0.1]:9835",
                            "[::ffff:127.0.0.1]:1",
                            "[::2]:1",
                            "localhost:9835",
                            "example.com:9835",
                            "127.0.0.1\n:9835"})
    EXPECT_FALSE(ParseLoopbackAddress(other)) << other;
}

TEST(LoopbackAddress, IsWhatARequestForThisMachineNames) {
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:9835", "localhost", "localhost:1", "[::1]:9835", "[::1]", "127.1.2.3"})
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  for (const char* host :
       {"", "example.com", "127.0.0.1.example.com", "localhost.example.com:9835", "10.0.0.1:9835", "[::2]"})
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
}

}  // namespace
}  // namespace gpumux
