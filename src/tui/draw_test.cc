// SPDX-License-Identifier: Apache-2.0
#include "tui/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tui/parts.h"
#include "tui/testing/scene.h"

namespace gpumux::tui {
namespace {

using namespace std::chrono_literals;
using testing::AddStranger;
using ::testing::HasSubstr;
using testing::Machine;
using ::testing::Not;
using testing::TakesTurns;
using testing::TenantOn;
using testing::Waiting;

Look Plainly() {
  Look look;
  look.host = "node1";
  look.time = "12:34:56";
  look.every = "1.0 s";
  return look;
}

// Two tenants of turns, three seconds long, one that waits and a stranger.
Model Scene() {
  Model model;
  for (int second = 0; second < 4; ++second) {
    TenantSample serve = TenantOn("serve", 30, 40), train = TenantOn("train", 20, 30);
    TakesTurns(serve, second * 0.25);
    TakesTurns(train, second < 3 ? 0 : 0.75);
    Sample sample = Machine({serve, train, Waiting("late", 60)});
    AddStranger(sample, 812, 10);
    model.Take(sample, std::chrono::seconds(second + 1));
  }
  EventsSample events;
  EventSample event;
  event.at_unix_milliseconds = 1000ull * (3600 * 12 + 60 * 34 + 55);
  event.kind = "granted";
  event.tenant_name = "serve";
  event.text = "40.0 GiB";
  event.user = "ann";
  events.events.push_back(event);
  model.TakeEvents(events);
  return model;
}

std::string Drawn(const Model& model, int width, int height, bool ascii = false) {
  View view(false);
  view.Follow(model);
  Look look = Plainly();
  look.ascii = ascii;
  return Draw(model, view, width, height, look).Text();
}

TEST(Draw, TheFirstScreenAt80x24) {
  EXPECT_EQ(Drawn(Scene(), 80, 24),
            "gpumux top  12:34:56  2 tenants, 1 waiting  node1  every 1.0 s\n"
            "GPU 0  NVIDIA H200  turns  held 100 %  busy 37 %\n"
            "[==!!!!!!!AAAAAAAAAAAAAAAAAAAAAAAAaaaaaaaaBBBBBBBBBBBBBBBbbbbbbbb··············]\n"
            " used 50.0  guaranteed 70.0  of 100.0 GiB  promisable 18.0  !10.0  ?0.0\n"
            "Who held GPU 0, last 3 s, newest on the right, a column a sample\n"
            " A serve        │                                                   ▂▂▂│  25 %\n"
            " B train        │                                                   ··▆│  75 %\n"
            "   TENANT  OWNER STATE   GPU USED/LIMIT GiB GUAR HELD ENFORCED COMMAND\n"
            " A serve   ann   running 0        30.0/40.0 40.0 25 % guard    python3 serve.py\n"
            " B train   ann   running 0        20.0/30.0 30.0 75 % guard    python3 train.py\n"
            "   late    ann   waiting –         0.0/60.0 60.0    – –        python3 late.py\n"
            " ! (other) bob   running 0           10.0/– none    – NO       unmanaged pid 81~\n"
            "\n\n\n\n\n\n\n\n"
            "late waits (place 1): needs 60.0 GiB, 8.0 GiB can be promised\n"
            "\n"
            "12:34:55 granted serve: 40.0 GiB [ann]\n"
            "F1Help EnterDetail F4Filter F6Sort F7Memory F8Time F9Stop spaceTag F10Quit\n");
}

TEST(Draw, HowBusyAGpuIsIsLeftOutWhereNobodyKnows) {
  Sample sample = Machine({TenantOn("a", 10, 20)});
  sample.gpus[0].busy_ratio.reset();
  Model model;
  model.Take(sample, 1s);
  EXPECT_THAT(Drawn(model, 80, 24), Not(HasSubstr("busy")));
}

TEST(Draw, ALowScreenIsForTheTable) {
  const std::string screen = Drawn(Scene(), 60, 12);
  EXPECT_THAT(screen, Not(HasSubstr("Who held")));
  for (const char* shown : {"GPU 0", " A serve", " B train", "late waits", "F1Help"})
    EXPECT_THAT(screen, HasSubstr(shown));
}

TEST(Draw, EverySizeIsFilledWithoutGoingOutside) {
  const Model model = Scene();
  for (int height = 1; height <= 60; ++height) {
    for (int width = 1; width <= 200; width += width < 90 ? 1 : 37) {
      View view(false);
      view.Follow(model);
      const Screen screen = Draw(model, view, width, height, Plainly());
      ASSERT_EQ(screen.width(), width);
      ASSERT_EQ(screen.height(), height);
    }
  }
}

TEST(Draw, WhereNobodyKnowsWhoHeldTheGpuNothingIsDrawn) {
  for (const char* mode : {"timeslice", "mps", "exclusive"}) {
    Model model;
    for (int second = 1; second < 4; ++second)
      model.Take(Machine({TenantOn("a", 10, 20, mode), TenantOn("b", 10, 20, mode)}),
                 std::chrono::seconds(second));
    const std::string screen = Drawn(model, 120, 24);
    EXPECT_THAT(screen, HasSubstr("held –"));
    EXPECT_THAT(screen, HasSubstr("Who held GPU 0 is not known of A,B: "));
    for (const char* glyph : {"│", "█", "▁"}) EXPECT_THAT(screen, Not(HasSubstr(glyph))) << mode;
  }
}

TEST(Draw, AsciiHasNothingElseInAnyPage) {
  Model model = Scene();
  for (const char* keys : {"", "h", ">", "\r", "/\xc3\xa9"}) {
    View view(false);
    view.Follow(model);
    for (const char32_t key : Shown(keys)) view.Press({Key::Code::kCharacter, key}, model, Room{10, 0});
    if (keys[0] == '\r') view.Press({Key::Code::kEnter}, model, Room{10, 0});
    Look look = Plainly();
    look.ascii = true;
    for (const char c : Draw(model, view, 100, 60, look).Text())
      ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
  }
}

TEST(Draw, HostileTextStaysText) {
  const std::string evil =
      "\x1b[2J\x1b]0;owned\a\xc2\x9b"
      "31m\xe2\x80\xae\r\n";
  TenantSample tenant = TenantOn("a", 10, 20);
  tenant.name = tenant.owner = tenant.command = tenant.cwd = tenant.mode_reason = tenant.state = evil;
  tenant.members[0].name = tenant.members[0].guard = tenant.enforced = tenant.priority = evil;
  tenant.labels.emplace_back(evil, evil);
  Sample sample = Machine({tenant, Waiting(evil, 5)});
  sample.tenants[1].waiting->reason = evil;
  AddStranger(sample, 1, 1);
  sample.gpus[0].strangers[0].name = sample.gpus[0].strangers[0].container = evil;
  sample.gpus[0].name = sample.gpus[0].mode = sample.driver_version = sample.gpus[0].promisable_reason = evil;
  Model model;
  model.Take(sample, 1s);
  EventsSample events;
  events.events.resize(1);
  events.events[0].text = events.events[0].kind = events.events[0].tenant_name = events.events[0].user = evil;
  model.TakeEvents(events);
  model.Lose(evil);
  Look look = Plainly();
  look.host = evil;
  for (const Key& key : {Key{}, Key{Key::Code::kEnter}, Key{Key::Code::kCharacter, U'k'}}) {
    View view(false);
    view.Follow(model);
    view.Press(key, model, Room{10, 0});
    if (key.code == Key::Code::kOther) view.Say(evil);
    const std::string text = Draw(model, view, 150, 50, look).Text();
    EXPECT_THAT(text, HasSubstr("[2J"));
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      ASSERT_TRUE(byte >= 0x20 || byte == '\n') << i;
      ASSERT_FALSE(byte == 0x7f);
      // No C1 control, nothing that turns the writing around.
      ASSERT_FALSE(byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
      ASSERT_NE(text.compare(i, 3, "\xe2\x80\xae"), 0);
    }
  }
}

TEST(Draw, MemoryThatIsPromisedToManyIsStillSeenOfEach) {
  std::vector<TenantSample> tenants;
  tenants.push_back(TenantOn("big", 60, 70));
  for (int i = 0; i < 9; ++i) {
    TenantSample small = TenantOn("s" + std::to_string(i), 0, 0);
    small.used = small.gpus[0].used = 300 * kMiB;
    tenants.push_back(small);
  }
  Model model;
  model.Take(Machine(tenants), 1s);
  Screen screen(80, 1);
  DrawMemoryBar(screen, 0, 0, 80, model, model.sample().gpus[0]);
  const std::string bar = screen.Line(0);
  for (const char key : std::string("ABCDEFGHIJ")) EXPECT_THAT(bar, HasSubstr(std::string(1, key)));
  EXPECT_EQ(bar.find('a') != std::string::npos, true);
  // 60 of 100 GiB in 78 cells.
  EXPECT_NEAR(static_cast<double>(std::count(bar.begin(), bar.end(), 'A')), 47, 1);
}

TEST(Draw, AMemoryThatIsNotKnownIsNotZero) {
  Sample sample = Machine({});
  sample.daemon_pid.reset();
  GpuSample& gpu = sample.gpus[0];
  gpu.total.reset();
  gpu.used.reset();
  gpu.guaranteed.reset();
  gpu.promisable.reset();
  gpu.unexplained.reset();
  Model model;
  model.Take(sample, 1s);
  model.Lose("no gpumux daemon runs: these figures are NVML's alone");
  const std::string screen = Drawn(model, 80, 24);
  EXPECT_THAT(screen, HasSubstr("no gpumux daemon runs: these figures are NVML's alone"));
  EXPECT_THAT(screen, HasSubstr("how much it has is not known"));
  EXPECT_THAT(screen, HasSubstr("used –  guaranteed –  of – GiB"));
}

TEST(Draw, ManyGpusHaveALineEachAndTheRestIsCounted) {
  Model model;
  Sample sample = Machine({});
  for (int i = 1; i < 40; ++i) {
    sample.gpus.push_back(sample.gpus[0]);
    sample.gpus.back().uuid += std::to_string(i);
    sample.gpus.back().label = std::to_string(i);
  }
  model.Take(sample, 1s);
  EXPECT_THAT(Drawn(model, 80, 24), HasSubstr("and 33 more GPUs"));
  View view(false);
  for (int i = 0; i < 39; ++i) view.Press({Key::Code::kCharacter, U'g'}, model, Room{10, 0});
  EXPECT_THAT(Draw(model, view, 80, 24, Plainly()).Text(), HasSubstr("GPU 38  NVIDIA H200"));
  view.Press({Key::Code::kCharacter, U'g'}, model, Room{10, 0});
  view.Press({Key::Code::kCharacter, U'g'}, model, Room{10, 0});
  EXPECT_FALSE(view.gpu());
}

TEST(Draw, ALongTableIsShownAroundTheSelectedRow) {
  std::vector<TenantSample> tenants;
  for (int i = 0; i < 100; ++i) tenants.push_back(TenantOn("tenant" + std::to_string(i), 0, 0, "timeslice"));
  Model model;
  model.Take(Machine(tenants), 1s);
  View view(false);
  view.Follow(model);
  EXPECT_THAT(Draw(model, view, 80, 24, Plainly()).Text(), HasSubstr("tenant0 "));
  view.Press({Key::Code::kEnd}, model, Room{10, 0});
  const std::string end = Draw(model, view, 80, 24, Plainly()).Text();
  EXPECT_THAT(end, HasSubstr("tenant99 "));
  EXPECT_THAT(end, HasSubstr(" of 100"));
  EXPECT_THAT(end, Not(HasSubstr("tenant0 ")));
}

TEST(Draw, TheDetailsOfATenantSayWhatEnforcesItsPromise) {
  Model model = Scene();
  View view(false);
  view.Follow(model);
  view.Press({Key::Code::kEnter}, model, Room{10, 0});
  const std::string detail = Draw(model, view, 100, 40, Plainly()).Text();
  EXPECT_THAT(detail, HasSubstr("serve (t-serve), ann, running"));
  EXPECT_THAT(detail, HasSubstr("40.0 GiB guaranteed, limit 40.0 GiB"));
  EXPECT_THAT(detail, HasSubstr("enforced by   guard"));
  EXPECT_THAT(detail, HasSubstr("25 % of the last interval"));
  EXPECT_THAT(detail, HasSubstr("pid 4711"));
  EXPECT_THAT(detail, HasSubstr("EscBack"));
}

TEST(Draw, LongLinesOfTextGoOnUnderTheirBeginning) {
  const std::vector<TextLine> lines{{"  command       one two three four five", Ink::kPlain},
                                    {"averylongwordwithoutanyspace x", Ink::kStrong},
                                    {"", Ink::kPlain},
                                    {"  a  学習中学習中学習中", Ink::kPlain}};
  std::string text;
  for (const TextLine& line : Wrapped(lines, 24)) {
    EXPECT_LE(TextWidth(line.text), 24);
    text += line.text + "|\n";
  }
  EXPECT_EQ(text,
            "  command       one two|\n"
            "            three four|\n"
            "            five|\n"
            "averylongwordwithoutanys|\n"
            "pace x|\n"
            "|\n"
            "  a  学習中学習中学習中|\n");
  for (int width = 1; width < 12; ++width)
    for (const TextLine& line : Wrapped(lines, width)) ASSERT_LE(TextWidth(line.text), std::max(width, 2));
}

TEST(Draw, ThePageOfHelpCanBeReadToItsEnd) {
  const Model model = Scene();
  View view(false);
  view.Follow(model);
  view.Press({Key::Code::kCharacter, U'h'}, model, {});
  view.Press({Key::Code::kEnd}, model, RoomOf(model, view, 80, 24));
  EXPECT_THAT(Draw(model, view, 80, 24, Plainly()).Line(22), HasSubstr("is unknown, never zero"));
}

TEST(Draw, ReadonlyOffersNothingThatActs) {
  const Model model = Scene();
  View view(true);
  view.Follow(model);
  const std::string text = Draw(model, view, 80, 24, Plainly()).Text();
  EXPECT_THAT(text, HasSubstr("read-only"));
  for (const char* key : {"F7", "F8", "F9"}) EXPECT_THAT(text, Not(HasSubstr(key)));
}

TEST(Draw, ALongQuestionShowsItsEnd) {
  std::vector<TenantSample> tenants;
  for (int i = 0; i < 20; ++i) tenants.push_back(TenantOn("with-a-long-name-" + std::to_string(i), 0, 0));
  Model model;
  model.Take(Machine(tenants), 1s);
  View view(false);
  view.Follow(model);
  for (int i = 0; i < 20; ++i) view.Press({Key::Code::kCharacter, U' '}, model, Room{10, 0});
  view.Press({Key::Code::kCharacter, U'm'}, model, Room{10, 0});
  for (const char32_t c : std::u32string(U"12GiB"))
    view.Press({Key::Code::kCharacter, c}, model, Room{10, 0});
  const Screen screen = Draw(model, view, 80, 24, Plainly());
  EXPECT_THAT(screen.Line(23), ::testing::EndsWith("12GiB"));
  // Before the yes it is how many that counts.
  view.Press({Key::Code::kEnter}, model, Room{10, 0});
  EXPECT_THAT(Draw(model, view, 80, 24, Plainly()).Line(23), HasSubstr("12GiB for 20 tenants"));
}

}  // namespace
}  // namespace gpumux::tui
