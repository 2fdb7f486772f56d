// SPDX-License-Identifier: Apache-2.0
#include "daemon/api_server.h"

#include <sys/socket.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <map>

#include "base/log.h"
#include "core/rate_limit.h"
#include "daemon/event_loop_asio.h"
#include "daemon/user_name.h"
#include "ipc/accept.h"

namespace gpumux::daemon {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Protocol = asio::generic::stream_protocol;  // of Unix sockets and TCP alike
using Stream = beast::basic_stream<Protocol>;

// Of all who are not the daemon's user or root, and of each of them: these two
// can still look and stop when others do their worst.
constexpr size_t kMaxOfStrangers = 256;
constexpr size_t kMaxPerStranger = 32;
// A dashboard of each of their machines' screens is far below.
constexpr unsigned kRequestsASecond = 50;
constexpr unsigned kRequestsAtOnce = 100;
constexpr auto kAcceptPause = std::chrono::milliseconds(200);
constexpr uint32_t kMaxHeaderBytes = 8192;
constexpr uint64_t kMaxBodyBytes = 65536;
constexpr auto kPatience = std::chrono::seconds(10);
constexpr int kAcceptsAtOnce = 16;

}  // namespace

struct ApiServer::Impl {
  struct Connection;
  // Of who is not the daemon's user or root. Shared: a connection may be the last
  // thing that goes.
  struct Strangers {
    std::map<uid_t, size_t> of_uid;
    size_t all = 0;
  };

  Impl(EventLoop& l, FairTurns& t, const Clock& c, std::function<void(const Request&, Reply)> h)
      : loop(l), turns(t), clock(c), handle(std::move(h)) {}

  EventLoop& loop;
  FairTurns& turns;
  const Clock& clock;
  std::function<void(const Request&, Reply)> handle;
  core::RateLimit of_stranger{kRequestsASecond, kRequestsAtOnce};
  ipc::UnixListener listener;
  ipc::TcpListener tcp;  // instead of `listener`
  EventLoop::Watch watch, accept_again;
  std::shared_ptr<Strangers> strangers = std::make_shared<Strangers>();  // their connections

  bool MayConnect(uid_t uid) const {
    const auto it = strangers->of_uid.find(uid);
    return !IsStranger(uid) || (strangers->all < kMaxOfStrangers &&
                                (it == strangers->of_uid.end() || it->second < kMaxPerStranger));
  }
  int fd() const { return tcp.valid() ? tcp.fd() : listener.fd(); }
  Result<ipc::PeerIdentity> PeerOf(int connection) const {
    if (tcp.valid()) return ipc::PeerIdentity{.pid = 0, .uid = kUnknownUser, .gid = static_cast<gid_t>(-1)};
    return ipc::PeerOf(connection);
  }
  void StartAccepting() {
    watch = loop.OnReadable(fd(), [this] { Accept(); });
  }
  void Accept();
};

struct ApiServer::Impl::Connection : std::enable_shared_from_this<Connection> {
  Connection(Impl& s, Protocol::socket socket, ipc::PeerIdentity p)
      : server(s), strangers(s.strangers), stream(std::move(socket)), peer(p), delay(s.loop.impl().context) {
    if (!IsStranger(peer.uid)) return;
    ++strangers->all;
    ++strangers->of_uid[peer.uid];
  }
  ~Connection() {
    if (!IsStranger(peer.uid)) return;
    --strangers->all;
    if (--strangers->of_uid[peer.uid] == 0) strangers->of_uid.erase(peer.uid);
  }

  void Read() {
    parser.emplace();
    parser->header_limit(kMaxHeaderBytes);
    parser->body_limit(kMaxBodyBytes);
    stream.expires_after(kPatience);
    http::async_read(stream, buffer, *parser, [self = shared_from_this()](beast::error_code error, size_t) {
      if (error == http::error::end_of_stream) return;
      if (!error) return self->WaitForTurn();
      // What arrived is no request, or too large: said so where the peer may still listen.
      if (error.category() == http::make_error_code(http::error::bad_method).category()) {
        self->Write({error == http::error::body_limit || error == http::error::header_limit ? 413 : 400,
                     "{\"error\":{\"code\":\"invalid\",\"message\":\"not an HTTP request that is served "
                     "here\",\"hint\":\"\"}}\n"},
                    11, false);
      }
    });
  }

  void WaitForTurn() {
    const auto wait = IsStranger(peer.uid) ? server.of_stranger.Wait(peer.uid, server.clock.Now())
                                           : std::chrono::nanoseconds(0);
    if (wait.count() == 0) return TakeTurn();
    stream.expires_never();
    delay.expires_after(wait);
    delay.async_wait([self = shared_from_this()](beast::error_code error) {
      if (!error) self->TakeTurn();
    });
  }

  void TakeTurn() {
    if (server.turns.Take(peer.uid)) return Answer();
    server.turns.Later(peer.uid, [self = shared_from_this()] { self->Answer(); });
  }

  void Answer() {
    const auto& message = parser->get();
    Request request;
    request.method = std::string(message.method_string());
    const std::string target(message.target());
    const size_t question = target.find('?');
    request.path = target.substr(0, question);
    if (question != std::string::npos) request.query = target.substr(question + 1);
    request.body = message.body();
    request.host = std::string(message[http::field::host]);
    request.peer = peer;
    server.handle(request,
                  [self = shared_from_this(), version = message.version(), keep_alive = message.keep_alive()](
                      Response answer) { self->Write(std::move(answer), version, keep_alive); });
  }

  void Write(Response answer, unsigned version, bool keep_alive) {
    response = {};
    response.version(version);
    response.result(static_cast<unsigned>(answer.status));
    response.set(http::field::server, "gpumuxd");
    response.set(http::field::content_type, answer.content_type);
    response.keep_alive(keep_alive);
    response.body() = std::move(answer.body);
    response.prepare_payload();
    stream.expires_after(kPatience);
    http::async_write(stream, response,
                      [self = shared_from_this(), keep_alive](beast::error_code error, size_t) {
                        if (!error && keep_alive) return self->Read();
                        beast::error_code ignored;
                        (void)self->stream.socket().shutdown(Protocol::socket::shutdown_both, ignored);
                      });
  }

  Impl& server;
  std::shared_ptr<Strangers> strangers;
  Stream stream;
  ipc::PeerIdentity peer;
  beast::flat_buffer buffer{kMaxHeaderBytes + kMaxBodyBytes};
  std::optional<http::request_parser<http::string_body>> parser;
  http::response<http::string_body> response;
  asio::steady_timer delay;
};

void ApiServer::Impl::Accept() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    auto fd = ipc::AcceptFrom(this->fd());
    if (!fd) {
      // No descriptor is left: looking again at once would only burn the processor.
      LogError("HTTP socket: {}", fd.error().ToString());
      watch = {};
      accept_again = loop.After(kAcceptPause, [this] { StartAccepting(); });
      return;
    }
    if (!fd->valid()) return;
    const auto peer = PeerOf(fd->get());
    if (!peer || !MayConnect(peer->uid)) continue;
    Protocol::socket socket(loop.impl().context);
    beast::error_code error;
    (void)socket.assign(Protocol(AF_UNSPEC, 0), fd->get(), error);  // its family is only asked to make one
    if (error) continue;
    fd->release();
    std::make_shared<Connection>(*this, std::move(socket), *peer)->Read();
  }
}

ApiServer::ApiServer(EventLoop& loop, FairTurns& turns, const Clock& clock,
                     std::function<void(const Request&, Reply)> handle)
    : impl_(std::make_unique<Impl>(loop, turns, clock, std::move(handle))) {}
ApiServer::~ApiServer() = default;

void ApiServer::Listen(ipc::UnixListener listener) {
  impl_->watch = {};
  impl_->listener = std::move(listener);
  impl_->StartAccepting();
}

void ApiServer::Listen(ipc::TcpListener listener) {
  impl_->watch = {};
  impl_->tcp = std::move(listener);
  impl_->StartAccepting();
}

bool ApiServer::Listening() const { return impl_->tcp.valid() || impl_->listener.InPlace(); }

}  // namespace gpumux::daemon
