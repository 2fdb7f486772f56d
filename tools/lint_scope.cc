// SPDX-License-Identifier: Apache-2.0
//
// A plugin of clang for tools/check-lint: clang-tidy's checks are shown the declarations
// of this project alone. Without it every check walks through all of the standard
// library's and nlohmann/json's and finds what is then thrown away, which is four fifths
// of its time.
#include <clang/AST/ASTConsumer.h>
#include <clang/AST/ASTContext.h>
#include <clang/AST/Decl.h>
#include <clang/Basic/SourceManager.h>
#include <clang/Frontend/FrontendPluginRegistry.h>

#include <memory>
#include <string>
#include <vector>

namespace {

class NarrowScope : public clang::ASTConsumer {
 public:
  void HandleTranslationUnit(clang::ASTContext& context) override {
    std::vector<clang::Decl*> ours;
    for (clang::Decl* declaration : context.getTranslationUnitDecl()->decls()) {
      if (!context.getSourceManager().isInSystemHeader(declaration->getLocation()))
        ours.push_back(declaration);
    }
    context.setTraversalScope(ours);
  }
};

class LintScope : public clang::PluginASTAction {
 public:
  std::unique_ptr<clang::ASTConsumer> CreateASTConsumer(clang::CompilerInstance&, llvm::StringRef) override {
    return std::make_unique<NarrowScope>();
  }
  bool ParseArgs(const clang::CompilerInstance&, const std::vector<std::string>&) override { return true; }
  // Before clang-tidy's own consumer, which the checks are called by.
  ActionType getActionType() override { return AddBeforeMainAction; }
};

const clang::FrontendPluginRegistry::Add<LintScope> registered("lint-scope", "declarations of the project");

}  // namespace
