// SPDX-License-Identifier: Apache-2.0
#include "cli/japanese.h"

#include <algorithm>
#include <iterator>

namespace gpumux::cli {
namespace {

struct Pair {
  std::string_view english, japanese;
};

constexpr Pair kPairs[] = {
    // Of the capability records (src/modes).
    {"guard", "ガード"},
    {"guard, and MPS for each process", "ガード、加えてプロセスごとに MPS"},
    {"ledger", "台帳"},
    {"no other tenant is admitted", "ほかのテナントを入れないこと"},
    {"all of the GPU", "GPU 全部"},
    {"admission: no other tenant is admitted", "受け付け (ほかのテナントを入れない)"},
    {"no neighbour", "隣がいません"},
    {"none", "なし"},
    {"not needed, and refused", "不要で、断られます"},
    {"equal turns among the processes that are busy; no share can be promised",
     "忙しいプロセス同士で均等。割合は約束できません"},
    {"the driver's time-slicing", "ドライバーの時分割"},
    {"does not reach this tenant", "このテナントには及びません"},
    {"slows this tenant down: busy neighbours take turns with it",
     "このテナントは遅くなります。忙しい隣と交代で動きます"},
    {"about 19 % of the throughput with two busy tenants", "忙しい 2 つのテナントで処理量の約 19 %"},
    {"refused", "断られます"},
    {"its part of the GPU's time while others want it, all of it while nobody does",
     "ほかが使いたい間は GPU 時間のうち自分の分、誰も使わない間は全部"},
    {"turns", "順番 (turns)"},
    {"two switches in 40 ms with two busy tenants", "忙しい 2 つのテナントで 40 ms に 2 回の切り替え"},
    {"a minimum and a ceiling of the GPU's time, as 30%:60%; without it an equal part of what is left",
     "GPU 時間の下限と上限 (例 30%:60%)。指定がなければ残りを均等に分けます"},
    {"kernels run beside those of others while multiprocessors last; no share can be promised",
     "SM が足りる間、ほかのカーネルと並んで動きます。割合は約束できません"},
    {"MPS: a ceiling on multiprocessors", "MPS による SM 数の上限"},
    {"ends this tenant's work on the GPU", "このテナントの GPU 上の仕事が失われます"},
    {"does not reach this tenant while the descriptors of the dead are held",
     "終了したプロセスのディスクリプターを保持している間は、このテナントには及びません"},
    {"slows this tenant down where both want the same multiprocessors, memory or caches",
     "同じ SM、メモリ、キャッシュを使うと、このテナントは遅くなります"},
    {"no: each process has its own GPU address space (the driver's doing)",
     "いいえ。プロセスごとに GPU のアドレス空間が別です (ドライバーの働き)"},
    {"memory bandwidth, caches and copy engines", "メモリ帯域、キャッシュ、コピーエンジン"},
    {"a ceiling on multiprocessors, as 40%; no minimum", "SM 数の上限 (例 40%)。下限はありません"},
    {"--restart neighbour-fault starts the program again",
     "--restart neighbour-fault でプログラムを再開できます"},
    {"its compute mode is Prohibited: no program can use it",
     "コンピュートモードが Prohibited で、どのプログラムも使えません"},
    {"an administrator can change that: nvidia-smi -c DEFAULT", "管理者による変更 (nvidia-smi -c DEFAULT)"},
    {"its compute mode is Exclusive_Process: the driver lets one process in at a time",
     "コンピュートモードが Exclusive_Process で、ドライバーは一度に 1 つのプロセスしか入れません"},
    {"use --mode exclusive, or have an administrator run: nvidia-smi -c DEFAULT",
     "--mode exclusive を使うか、管理者が nvidia-smi -c DEFAULT を実行すること"},
    {"the GPU's partition, and the guard", "GPU のパーティション (ハードウェア) とガード"},
    {"the GPU's partition", "GPU のパーティション (ハードウェア)"},
    {"the GPU's partition: no other tenant is admitted to the instance",
     "GPU のパーティション (ハードウェア)。このインスタンスにはほかのテナントを入れません"},
    {"all multiprocessors of the instance", "インスタンスの SM の全部"},
    {"does not reach its multiprocessors, memory and cache; power, clocks and PCIe are shared",
     "SM、メモリ、キャッシュには及びません。電力、クロック、PCIe は共有です"},
    {"no", "いいえ"},
    {"power, clocks, PCIe", "電力、クロック、PCIe"},
    {"not needed, and refused: an instance has a fixed part of the GPU",
     "不要で、断られます。インスタンスは GPU の決まった部分です"},
    {"it is partitioned (MIG): its instances can be used, not itself",
     "パーティション分割 (MIG) されています。使えるのはインスタンスで、GPU そのものではありません"},
    {"see them with: gpumux mig status", "gpumux mig status で確認"},
    {"it is no MIG instance", "MIG インスタンスではありません"},
    {"see what would fit: gpumux mig plan", "gpumux mig plan で入る構成を確認"},
    {"MPS within a MIG instance was not tried, so nothing is promised of it",
     "MIG インスタンス内の MPS は試していないので、何も約束しません"},
    {"use --mode timeslice, turns or mig", "--mode timeslice、turns、mig を使うこと"},
    // Of `promise` (promise_text.cc).
    {"Guaranteed: what --mem promises is there until the program ends. By: {}.",
     "保証: --mem で約束した分は、プログラムが終わるまであります。守るもの: {}。"},
    {"Without --mem nothing is guaranteed: the program may use what is promised to nobody.",
     "--mem がなければ保証はありません。誰にも約束されていない分を使えます。"},
    {"Guaranteed: all that the GPU can promise. By: {}.",
     "保証: この GPU が約束できるメモリの全部。守るもの: {}。"},
    {"Guaranteed: all that the instance can promise. By: {}.",
     "保証: このインスタンスが約束できるメモリの全部。守るもの: {}。"},
    {"The GPU keeps the limit, against hostile programs too.",
     "上限は GPU が守ります。悪意のあるプログラムに対しても有効です。"},
    {"A program waits until an instance that holds it has no tenant, or is refused with --no-wait.",
     "プログラムは、入る大きさのインスタンスからテナントがいなくなるまで待ちます。--no-wait "
     "なら断られます。"},
    {"Limit: what goes beyond it is refused with the driver's ordinary CUDA_ERROR_OUT_OF_MEMORY. By: {}.",
     "上限: 超える分は、ドライバーのふつうの CUDA_ERROR_OUT_OF_MEMORY で断られます。守るもの: {}。"},
    {"Promised: {}. By: {}.", "約束: {}。守るもの: {}。"},
    {"--share: {}.", "--share: {}。"},
    {"Kernels of several tenants run at the same time.", "複数のテナントのカーネルが同時に動きます。"},
    {"Kernels of two tenants never run at the same time.",
     "2 つのテナントのカーネルが同時に動くことはありません。"},
    {"Cost of switching: {}.", "切り替えのコスト: {}。"},
    {"While a tenant with --priority latency works, kernels of neighbours with --priority best-effort wait; "
     "a "
     "kernel that runs already is not ended.",
     "--priority latency のテナントが働いている間、--priority best-effort の隣のカーネルは待ちます。"
     "すでに動いているカーネルは途中で止めません。"},
    {"Can a neighbour read my memory? {}.", "隣に自分のメモリを読まれますか? {}。"},
    {"Shared and not divided: {}.", "共有され、分割されないもの: {}。"},
    {"The limit is kept inside the program, for cooperative programs: a hostile one can escape it.",
     "上限はプログラムの中で守られる、協力的なプログラムのためのものです。悪意のあるプログラムは逃げられます"
     "。"},
    {"A neighbour's GPU fault: {}.", "隣の GPU フォルト: {}。"},
    {"After it: {}.", "そのあと: {}。"},
    {"A neighbour's death: {}.", "隣の終了: {}。"},
    {"A neighbour's load: {}.", "隣の負荷: {}。"},
    {"A program that finds no room for its promise waits, or is refused with --no-wait.",
     "約束する余地がなければプログラムは待ちます。--no-wait なら断られます。"},
    {"A program waits until the GPU has no tenant, or is refused with --no-wait.",
     "プログラムは GPU からテナントがいなくなるまで待ちます。--no-wait なら断られます。"},
    {"A program outside gpumux may take memory that was promised: gpumux status shows the promise as AT RISK "
     "then, and whose program it is.",
     "gpumux の外のプログラムが、約束したメモリを取ることがあります。そのとき gpumux status は約束を AT RISK "
     "と示し、誰のプログラムかを示します。"},
    {"Every promise includes the CUDA contexts of its program: {} for each process and GPU{}.",
     "約束にはプログラムの CUDA コンテキストを含みます。プロセスと GPU ごとに {} です{}。"},
    {" (a safe guess until NVML has shown it)", " (NVML が示すまでは安全側の見積もり)"},
    {"Programs outside gpumux hold {} of this GPU now; without them so much more can be promised.",
     "gpumux の外のプログラムが今この GPU の {} を持っています。なければその分も約束できます。"},
    {"Figures were measured on an NVIDIA {}, not on this model.",
     "数値は NVIDIA {} で測ったもので、この機種で測ったものではありません。"},
    {"Figures were measured on an NVIDIA {}.", "数値は NVIDIA {} で測りました。"},
    {"| Equal tenants that fit | Each with | Of it for the program |",
     "| 入る等分のテナント数 | それぞれ | そのうちプログラムの分 |"},
    {"Nothing fits now.", "今は何も入りません。"},
    {"As of {}: gpumux {}, driver {}.", "{} 現在。gpumux {}、ドライバー {}。"},
    {"Mode {}", "モード {}"},
    {" (the GPU has it now)", " (この GPU の今のモード)"},
    {"Not possible now: {}. What helps: {}.", "今はできません。{}。対処: {}。"},
    {"Memory", "メモリ"},
    {"Compute", "計算"},
    {"Isolation", "隔離"},
    {"What may happen", "起こりうること"},
    {"SIMULATED: a software GPU. No hardware promises this.",
     "シミュレーション: ソフトウェア GPU です。約束するハードウェアはありません。"},
    {"Of {} the GPU can promise {} to tenants. {}", "{} のうち {} をテナントに約束できます。{}"},
    {"Its mode now is {}.", "今のモードは {} です。"},
    {"It has no mode now: {}.", "今のモードはありません ({})。"},
    {"no daemon runs", "デーモンが動いていません"},
    {"it has no tenant: the next one brings its mode", "テナントがいません。次のテナントがモードを決めます"},
};

}  // namespace

std::optional<std::string_view> Japanese(std::string_view english) {
  if (english.empty()) return english;
  const auto found = std::ranges::find(kPairs, english, &Pair::english);
  if (found == std::end(kPairs)) return std::nullopt;
  return found->japanese;
}

}  // namespace gpumux::cli
