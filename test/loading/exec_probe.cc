// SPDX-License-Identifier: Apache-2.0
//
// Starts a program in every way that the C library has, without any environment
// or with one of its own making.
//
//   exec_probe WAY bare PROGRAM [ARGUMENT]   the environment is empty
//   exec_probe WAY own PROGRAM [ARGUMENT]    it is OWN=1, PATH, and LD_PRELOAD=$OTHER if that is set
//   exec_probe WAY large PROGRAM [ARGUMENT]  the same and 20,000 others
//   exec_probe WAY full PROGRAM [ARGUMENT]   as large as the kernel takes
//   exec_probe environment                   prints its environment, sorted
//   exec_probe state                         prints what a library might have changed in it
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

std::vector<std::string> texts;
std::vector<char*> entries;

void MakePointers() {
  entries.clear();
  for (std::string& t : texts) entries.push_back(t.data());
  entries.push_back(nullptr);
}

int Status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

// Whether the kernel takes the environment, asked past everything.
bool KernelTakes(const char* program) {
  const pid_t child = fork();
  if (child == 0) {
    // As long as "environment", and does nothing.
    const char* argv[] = {program, "nonentities", nullptr};
    syscall(SYS_execve, program, argv, entries.data());
    _exit(errno == E2BIG ? 77 : 78);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return Status(status) != 77;
}

// Fills the environment up to the last byte that the kernel takes.
void FillUp(const char* program) {
  const size_t own = texts.size();
  const auto fits = [&](size_t bytes) {
    texts.resize(own);
    constexpr size_t kPart = 100'000;
    for (size_t left = bytes; left > 0; left -= std::min(left, kPart))
      texts.push_back("F=" + std::string(std::min(left, kPart), 'f'));
    MakePointers();
    return KernelTakes(program);
  };
  size_t good = 0, bad = size_t{64} << 20;
  while (bad - good > 1) {
    const size_t middle = (good + bad) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  fits(good);
}

void MakeEnvironment(const std::string& kind, const char* self) {
  if (kind == "bare") return;
  texts.push_back("OWN=1");
  texts.push_back("PATH=" + std::string(getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin"));
  if (const char* other = getenv("OTHER")) texts.push_back(std::string("LD_PRELOAD=") + other);
  if (kind == "large") {
    for (int i = 0; i < 20'000; ++i) texts.push_back("V" + std::to_string(i) + "=x");
  }
  if (kind == "full") FillUp(self);
}

int WaitFor(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return Status(status);
}

int Popen(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return 97;
  for (int c; (c = getc(pipe)) != EOF;) putchar(c);
  fflush(stdout);
  return Status(pclose(pipe));
}

__attribute__((noinline)) pid_t Fork(bool shares_memory, const char* program, char** argv, char** env,
                                     int out) {
  const pid_t child = shares_memory ? vfork() : fork();
  if (child != 0) return child;
  if (out != 1) dup2(out, 1);
  execve(program, argv, env);
  _exit(96);
}

size_t MappedPages() {
  FILE* file = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  if (file == nullptr || fscanf(file, "%zu", &pages) != 1) pages = 0;
  if (file != nullptr) fclose(file);
  return pages;
}

// Returns the program's exit code, or where the way replaces this program, 96 and errno.
int Start(const std::string& way, char* program, char* argument) {
  char* argv[] = {program, argument, nullptr};
  char** env = entries.data();
  const char* slash = strrchr(program, '/');
  const char* name = slash ? slash + 1 : program;
  pid_t child = 0;
  if (way == "execve") execve(program, argv, env);
  if (way == "execvpe") execvpe(name, argv, env);
  if (way == "execle") execle(program, program, argument, nullptr, env);
  if (way == "fexecve") fexecve(open(program, O_RDONLY | O_CLOEXEC), argv, env);
  if (way == "execveat") execveat(AT_FDCWD, program, argv, env, 0);
  if (way == "posix_spawn")
    return posix_spawn(&child, program, nullptr, nullptr, argv, env) ? 95 : WaitFor(child);
  if (way == "posix_spawnp")
    return posix_spawnp(&child, name, nullptr, nullptr, argv, env) ? 95 : WaitFor(child);
  if (way == "null") execve(program, argv, nullptr);
  if (way == "fork" || way == "vfork") {
    // Twice: the second finds what the first left in this process.
    for (int i = 0; i < 2; ++i) {
      const int out = i == 0 ? open("/dev/null", O_WRONLY) : 1;
      if (const int code = WaitFor(Fork(way == "vfork", program, argv, env, out)); code != 0) return code;
    }
    return 0;
  }
  if (way == "vfork-often") {
    const size_t before = MappedPages();
    for (int i = 0; i < 50; ++i) {
      if (const int code = WaitFor(Fork(true, program, argv, env, 1)); code != 0) return code;
    }
    std::printf("grown by %zu pages\n", MappedPages() - before);
    return 0;
  }
  // These take the process's own.
  environ = env;
  const std::string command = std::string("'") + program + "' " + (argument ? argument : "");
  if (way == "execv") execv(program, argv);
  if (way == "execvp") execvp(program, argv);
  if (way == "execl") execl(program, program, argument, nullptr);
  if (way == "execlp") execlp(program, program, argument, nullptr);
  if (way == "system") return Status(system(command.c_str()));
  if (way == "popen") return Popen(command);
  std::printf("%s: %s\n", way.c_str(), strerror(errno));
  return 96;
}

int PrintEnvironment() {
  std::vector<std::string> all;
  for (char** e = environ; *e; ++e) all.emplace_back(*e);
  std::sort(all.begin(), all.end());
  for (const std::string& e : all) std::printf("%s\n", e.substr(0, 300).c_str());
  return 0;
}

int Count(const char* folder) {
  int n = 0;
  if (DIR* dir = opendir(folder)) {
    while (readdir(dir) != nullptr) ++n;
    closedir(dir);
  }
  return n;
}

// Before and after it has used the functions that the guard stands in front of.
int PrintState() {
  for (int round = 0; round < 2; ++round) {
    const mode_t mask = umask(0);
    umask(mask);
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, nullptr, &blocked);
    std::string handlers, mask_bits;
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction action = {};
      if (sigaction(signal, nullptr, &action) != 0) continue;
      handlers += action.sa_handler == SIG_DFL ? 'd' : action.sa_handler == SIG_IGN ? 'i' : 'h';
      mask_bits += sigismember(&blocked, signal) == 1 ? '1' : '0';
    }
    rlimit files = {};
    getrlimit(RLIMIT_NOFILE, &files);
    errno = 0;
    void* found = dlsym(RTLD_DEFAULT, "cuInit");
    std::printf("files %d threads %d umask %o signals %s %s limit %lu errno %d cuInit %d\n",
                Count("/proc/self/fd"), Count("/proc/self/task"), mask, handlers.c_str(), mask_bits.c_str(),
                static_cast<unsigned long>(files.rlim_cur), errno, found != nullptr);
    std::printf("system %d popen %d\n", Status(system("exit 3")), Popen("exit 4"));
    dlclose(dlopen("libm.so.6", RTLD_NOW | RTLD_DEEPBIND));
    std::fflush(stdout);
  }
  return 5;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "environment") == 0) return PrintEnvironment();
  if (argc == 2 && strcmp(argv[1], "state") == 0) return PrintState();
  if (argc < 4) return 0;
  if (getenv("CLEAR_AT_ONCE")) {
    // All but what the search for a program needs.
    const std::string path = getenv("PATH");
    clearenv();
    setenv("PATH", path.c_str(), 1);
  }
  MakeEnvironment(argv[2], argv[0]);
  MakePointers();
  return Start(argv[1], argv[3], argc > 4 ? argv[4] : nullptr);
}
