// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps_control.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/process.h"

namespace gpumux::daemon {

namespace {

constexpr char kProgram[] = "nvidia-cuda-mps-control";
constexpr char kPidFile[] = "/nvidia-cuda-mps-control.pid";
constexpr auto kStartLimit = std::chrono::seconds(20);

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string FindMpsControl(const std::string& softgpu_libraries_dir) {
  if (!softgpu_libraries_dir.empty()) {
    const std::string beside = softgpu_libraries_dir + "/bin/" + kProgram;
    return ::access(beside.c_str(), X_OK) == 0 ? beside : "";
  }
  const char* path = ::getenv("PATH");
  std::string rest = path ? path : "/usr/bin:/bin";
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string file = rest.substr(0, colon) + "/" + kProgram;
    // A relative entry would depend on where the daemon was started.
    if (file[0] == '/' && ::access(file.c_str(), X_OK) == 0) return file;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return "";
}

MpsControl::MpsControl(EventLoop& loop, const MpsPrograms& programs, std::string pipe_dir,
                       std::string log_dir)
    : loop_(loop), programs_(programs), pipe_dir_(std::move(pipe_dir)), log_dir_(std::move(log_dir)) {}

std::vector<std::string> MpsControl::Environment() const {
  std::vector<std::string> env = programs_.env;
  env.push_back("CUDA_MPS_PIPE_DIRECTORY=" + pipe_dir_);
  env.push_back("CUDA_MPS_LOG_DIRECTORY=" + log_dir_);
  return env;
}

void MpsControl::Ask(std::string line, Answer answer) {
  Push({.argv = {programs_.control}, .env = Environment(), .input = std::move(line) + "\n"},
       std::move(answer));
}

void MpsControl::StartDaemon(const std::string& visible, Answer answer) {
  ChildCommand::Spec spec{
      .argv = {programs_.control, "-d"}, .env = Environment(), .input = "", .limit = kStartLimit};
  if (programs_.every_user) spec.argv.push_back("-multiuser-server");
  spec.env.push_back("CUDA_VISIBLE_DEVICES=" + visible);
  Push(std::move(spec), std::move(answer));
}

void MpsControl::Push(ChildCommand::Spec spec, Answer answer) {
  queue_.push_back({std::move(spec), std::move(answer)});
  if (queue_.size() == 1) Next();
}

void MpsControl::Next() {
  const auto answered = [this](Result<std::string> text) {
    const Answer answer = std::move(queue_.front().answer);
    queue_.pop_front();
    // Not the command from within its own callback.
    loop_.Post([ended = std::shared_ptr<ChildCommand>(std::move(running_))] {});
    if (!queue_.empty()) Next();
    answer(std::move(text));
  };
  auto started =
      ChildCommand::Start(loop_, queue_.front().spec, [answered](const ChildCommand::Outcome& outcome) {
        if (outcome.timed_out)
          return answered(Fail(Code::kTimeout, "the MPS control daemon does not answer"));
        if (outcome.exit_code != 0) {
          const std::string said = FirstLine(outcome.output);
          return answered(Fail(
              Code::kUnavailable,
              said.empty() ? fmt::format("{} ended with status {}", kProgram, outcome.exit_code) : said));
        }
        answered(outcome.output);
      });
  if (started)
    running_ = std::move(*started);
  else
    answered(tl::unexpected(started.error()));
}

pid_t MpsControl::DaemonPid() const {
  std::ifstream file(pipe_dir_ + kPidFile);
  pid_t pid = 0;
  if (!(file >> pid) || pid <= 1) return 0;
  // A file that was left behind, and another's pid by now.
  const auto stat = ReadProcessStat(pid);
  return stat && stat->state != 'Z' && stat->name.starts_with("nvidia-cuda-mps") ? pid : 0;
}

}  // namespace gpumux::daemon
