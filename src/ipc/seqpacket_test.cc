// SPDX-License-Identifier: Apache-2.0
#include "ipc/seqpacket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ipc/frame.h"

namespace gpumux::ipc {
namespace {

class Seqpacket : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpumux-ipc-XXXXXX";
    dir_ = ::mkdtemp(name);
    path_ = dir_ + "/s.sock";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void MakePair() {
    auto listener = UnixListener::Listen(path_, SOCK_SEQPACKET, 0600);
    ASSERT_TRUE(listener) << listener.error().message;
    listener_ = std::move(*listener);
    auto client = SeqpacketSocket::Connect(path_);
    ASSERT_TRUE(client) << client.error().message;
    client_ = std::move(*client);
    auto accepted = listener_.Accept();
    ASSERT_TRUE(accepted && accepted->valid());
    server_ = SeqpacketSocket(std::move(*accepted));
  }

  // The lowest free descriptor: grows when one leaks.
  static int NextFd() {
    UniqueFd fd(::open("/dev/null", O_RDONLY));
    return fd.get();
  }

  std::string dir_, path_;
  UnixListener listener_;
  SeqpacketSocket client_, server_;
};

std::vector<std::byte> Bytes(size_t n) { return std::vector<std::byte>(n, std::byte{7}); }

TEST_F(Seqpacket, DoesNotWaitForAListenerThatStandsStill) {
  listener_ = UnixListener::Listen(path_, SOCK_SEQPACKET, 0600).value();
  std::vector<SeqpacketSocket> waiting;
  for (int i = 0; i < 1000; ++i) {
    auto one = SeqpacketSocket::ConnectAtOnce(path_);
    if (!one) {
      EXPECT_EQ(one.error().code, Code::kTimeout);
      break;
    }
    waiting.push_back(std::move(*one));
  }
  EXPECT_GT(waiting.size(), 0u);
  EXPECT_LT(waiting.size(), 1000u);
  // It is there all the same: its path is not taken away from it.
  auto other = UnixListener::Listen(path_, SOCK_SEQPACKET, 0600);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kConflict);
}

TEST_F(Seqpacket, CarriesWholePacketsAndTheirDescriptors) {
  MakePair();
  UniqueFd pipe_read, pipe_write;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pipe_read.reset(ends[0]);
  pipe_write.reset(ends[1]);
  const int fds[] = {pipe_write.get(), pipe_write.get()};
  ASSERT_TRUE(client_.Send(Bytes(10), fds));
  ASSERT_TRUE(client_.Send(Bytes(kMaxPacketBytes)));
  auto first = server_.Receive();
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->what, Received::What::kPacket);
  EXPECT_EQ(first->bytes.size(), 10u);
  ASSERT_EQ(first->fds.size(), 2u);
  EXPECT_NE(::fcntl(first->fds[1].get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(::write(first->fds[1].get(), "x", 1), 1);
  char c = 0;
  EXPECT_EQ(::read(pipe_read.get(), &c, 1), 1);
  EXPECT_EQ(server_.Receive()->bytes.size(), kMaxPacketBytes);
  EXPECT_EQ(server_.Receive()->what, Received::What::kWouldBlock);
  client_.Close();
  EXPECT_EQ(server_.Receive()->what, Received::What::kClosed);
}

TEST_F(Seqpacket, KnowsItsPeer) {
  MakePair();
  const auto peer = PeerOf(server_.fd());
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, getuid());
  EXPECT_EQ(peer->gid, getgid());
  EXPECT_FALSE(PeerOf(STDERR_FILENO + 1000));
}

TEST_F(Seqpacket, APacketThatIsTooLargeIsRefusedAndLeaksNothing) {
  MakePair();
  const int before = NextFd();
  const int fds[] = {STDERR_FILENO};
  ASSERT_TRUE(client_.Send(Bytes(kMaxPacketBytes + 1), fds));
  EXPECT_EQ(server_.Receive().error().code, Code::kInvalid);
  EXPECT_EQ(NextFd(), before);
}

TEST_F(Seqpacket, MoreDescriptorsThanAllowedAreRefusedAndLeakNothing) {
  MakePair();
  const int before = NextFd();
  // By hand: Send itself does not send so many.
  constexpr size_t kCount = GPUMUX_MAX_FDS + 20;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kCount)] = {};
  char byte = 1;
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const int fd = STDERR_FILENO;
    std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
  }
  ASSERT_EQ(::sendmsg(client_.fd(), &message, 0), 1);
  EXPECT_EQ(server_.Receive().error().code, Code::kInvalid);
  EXPECT_EQ(NextFd(), before);
  EXPECT_EQ(client_.Send(Bytes(1), std::vector<int>(GPUMUX_MAX_FDS + 1, 2)).error().code, Code::kInvalid);
}

TEST_F(Seqpacket, SendingToAPeerThatIsGoneOrDoesNotReadIsAnErrorNotASignal) {
  MakePair();
  ASSERT_TRUE(client_.SetNonBlocking());
  Status sent;
  for (int i = 0; i < 1000 && sent; ++i) sent = client_.Send(Bytes(60'000));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Code::kTimeout);
  server_.Close();
  EXPECT_EQ(client_.Send(Bytes(1)).error().code, Code::kUnavailable);
}

TEST_F(Seqpacket, ListenReplacesADeadSocketAndNotALiveOne) {
  {
    auto first = UnixListener::Listen(path_, SOCK_SEQPACKET, 0600);
    ASSERT_TRUE(first);
    EXPECT_EQ(UnixListener::Listen(path_, SOCK_SEQPACKET, 0600).error().code, Code::kConflict);
    // What a killed daemon leaves: the file without a listener.
    ASSERT_EQ(::link(path_.c_str(), (dir_ + "/left.sock").c_str()), 0);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(SeqpacketSocket::Connect(dir_ + "/left.sock").error().code, Code::kUnavailable);
  EXPECT_TRUE(UnixListener::Listen(dir_ + "/left.sock", SOCK_SEQPACKET, 0600));
  EXPECT_EQ(SeqpacketSocket::Connect(path_).error().code, Code::kNotFound);
  std::ofstream(path_) << "a file";
  EXPECT_EQ(UnixListener::Listen(path_, SOCK_SEQPACKET, 0600).error().code, Code::kConflict);
}

TEST_F(Seqpacket, ASocketHasTheModeAskedForAndALongPathIsAnError) {
  auto listener = UnixListener::Listen(path_, SOCK_STREAM, 0600);
  ASSERT_TRUE(listener);
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(UnixListener::Listen("/tmp/" + std::string(200, 'x'), SOCK_STREAM, 0600).error().code,
            Code::kInvalid);
}

}  // namespace
}  // namespace gpumux::ipc
