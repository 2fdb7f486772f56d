// SPDX-License-Identifier: Apache-2.0
//
// The one file that includes ncurses.
#define NCURSES_NOMACROS 1
#define NCURSES_WIDECHAR 1
#include "tui/curses_terminal.h"

#include <fmt/format.h>
#include <ncursesw/curses.h>

#include <array>
#include <cstdlib>

namespace gpumux::tui {

struct CursesTerminal::State {
  SCREEN* screen = nullptr;
  bool color = false;
};

namespace {

enum Pair : short { kGreen = 1, kYellow, kRed };

attr_t AttributesOf(Ink ink) {
  switch (ink) {
    case Ink::kDim:
      return A_DIM;
    case Ink::kStrong:
    case Ink::kWarning:
    case Ink::kBad:
      return A_BOLD;
    case Ink::kReverse:
      return A_REVERSE;
    case Ink::kPlain:
    case Ink::kGood:
      break;
  }
  return A_NORMAL;
}

short PairOf(Ink ink) {
  switch (ink) {
    case Ink::kGood:
      return kGreen;
    case Ink::kWarning:
      return kYellow;
    case Ink::kBad:
      return kRed;
    default:
      return 0;
  }
}

Key Function(int number) { return {Key::Code::kFunction, 0, number}; }

Key SpecialKey(wint_t code) {
  using Code = Key::Code;
  if (code >= KEY_F(1) && code <= KEY_F(12)) return Function(static_cast<int>(code) - KEY_F(0));
  switch (code) {
    case KEY_UP:
      return {Code::kUp};
    case KEY_DOWN:
      return {Code::kDown};
    case KEY_PPAGE:
      return {Code::kPageUp};
    case KEY_NPAGE:
      return {Code::kPageDown};
    case KEY_HOME:
      return {Code::kHome};
    case KEY_END:
      return {Code::kEnd};
    case KEY_ENTER:
      return {Code::kEnter};
    case KEY_BACKSPACE:
    case KEY_DC:
      return {Code::kBackspace};
    default:
      return {Code::kOther};
  }
}

Key CharacterKey(wint_t character) {
  using Code = Key::Code;
  switch (character) {
    case L'\r':
    case L'\n':
      return {Code::kEnter};
    case L'\t':
      return {Code::kTab};
    case 0x1b:
      return {Code::kEscape};
    case 0x08:
    case 0x7f:
      return {Code::kBackspace};
    default:
      return {Code::kCharacter, static_cast<char32_t>(character)};
  }
}

}  // namespace

CursesTerminal::CursesTerminal(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<CursesTerminal>> CursesTerminal::Open(bool color) {
  auto state = std::make_unique<State>();
  // initscr would end the program where the terminal is not known.
  state->screen = ::newterm(nullptr, stdout, stdin);
  const char* term = std::getenv("TERM");
  const auto fail = [&](const char* why) {
    return Fail(Code::kUnsupported, fmt::format("TERM={}: {}", term ? term : "", why),
                "one screen without a terminal: gpumux top --once");
  };
  if (!state->screen) return fail("the terminal is not known");
  ::set_term(state->screen);
  if (!::tigetstr("cup")) {
    ::endwin();
    ::delscreen(state->screen);
    return fail("it cannot write where it is told to");
  }
  ::cbreak();
  ::noecho();
  ::nonl();
  ::curs_set(0);
  ::keypad(stdscr, TRUE);
  ::nodelay(stdscr, TRUE);
  ::set_escdelay(50);
  if (color && ::has_colors()) {
    ::start_color();
    ::use_default_colors();
    ::init_pair(kGreen, COLOR_GREEN, -1);
    ::init_pair(kYellow, COLOR_YELLOW, -1);
    ::init_pair(kRed, COLOR_RED, -1);
    state->color = true;
  }
  return std::unique_ptr<CursesTerminal>(new CursesTerminal(std::move(state)));
}

CursesTerminal::~CursesTerminal() {
  ::endwin();
  ::delscreen(state_->screen);
}

int CursesTerminal::width() const { return getmaxx(stdscr); }
int CursesTerminal::height() const { return getmaxy(stdscr); }

void CursesTerminal::Show(const Screen& screen) {
  ::werase(stdscr);
  for (int y = 0; y < screen.height(); ++y) {
    for (int x = 0; x < screen.width(); ++x) {
      const Cell& cell = screen.At(x, y);
      if (cell.glyph == 0 || (cell.glyph == U' ' && cell.ink == Ink::kPlain)) continue;
      const std::array<wchar_t, 2> glyph{static_cast<wchar_t>(cell.glyph), 0};
      cchar_t character;
      const short pair = state_->color ? PairOf(cell.ink) : short{0};
      if (::setcchar(&character, glyph.data(), AttributesOf(cell.ink), pair, nullptr) == OK)
        (void)::mvwadd_wch(stdscr, y, x, &character);
    }
  }
  ::wrefresh(stdscr);
}

std::optional<Key> CursesTerminal::Read() {
  wint_t character = 0;
  const int got = ::wget_wch(stdscr, &character);
  if (got == ERR) return std::nullopt;
  return got == KEY_CODE_YES ? SpecialKey(character) : CharacterKey(character);
}

}  // namespace gpumux::tui
