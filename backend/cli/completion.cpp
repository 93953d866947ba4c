// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "backend/cli/cli.h"

namespace bulkhead::cli {
namespace {

/// "--job -j --yes", what an app itself understands.
std::string optionsOf(const CLI::App& app) {
    std::string out;
    for (const CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) out += " --" + name;
        for (const std::string& name : option->get_snames()) out += " -" + name;
    }
    return out;
}

std::string verbsOf(const CLI::App& app) {
    std::string out;
    for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
        out += " " + verb->get_name();
    return out;
}

std::string bash(const CLI::App& app) {
    std::string out =
        "# bulkheadctl completion for bash: source it, or save it as\n"
        "# /etc/bash_completion.d/bulkheadctl\n"
        "_bulkheadctl() {\n"
        "  local word=${COMP_WORDS[COMP_CWORD]} verb= i\n"
        "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
        "    case ${COMP_WORDS[i]} in -*) ;; *) verb=${COMP_WORDS[i]}; break ;; esac\n"
        "  done\n"
        "  case $verb in\n";
    for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
        out += "    " + verb->get_name() + ") COMPREPLY=($(compgen -f -W \"" +
               verbsOf(*verb).erase(0, verbsOf(*verb).empty() ? 0 : 1) + optionsOf(*verb) +
               "\" -- \"$word\")) ;;\n";
    out += "    *) COMPREPLY=($(compgen -W \"" + verbsOf(app).substr(1) + optionsOf(app) +
           "\" -- \"$word\")) ;;\n  esac\n}\ncomplete -F _bulkheadctl bulkheadctl\n";
    return out;
}

/// Single quotes inside a single-quoted word of zsh and fish.
std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out;
}

std::string zsh(const CLI::App& app) {
    std::string out = "#compdef bulkheadctl\n_bulkheadctl() {\n  local -a verbs\n  verbs=(\n";
    std::string cases;
    for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
        out += "    '" + verb->get_name() + ":" + escaped(verb->get_description()) + "'\n";
        cases += "      " + verb->get_name() + ") compadd --" + verbsOf(*verb) + optionsOf(*verb) +
                 "; _files ;;\n";
    }
    return out + "  )\n  if ((CURRENT == 2)); then\n    _describe verb verbs\n    compadd --" +
           optionsOf(app) + "\n  else\n    case $words[2] in\n" + cases +
           "    esac\n  fi\n}\ncompdef _bulkheadctl bulkheadctl\n";
}

std::string fish(const CLI::App& app) {
    std::string out = "complete -c bulkheadctl -f\n";
    for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
        out += "complete -c bulkheadctl -n __fish_use_subcommand -a " + verb->get_name() + " -d '" +
               escaped(verb->get_description()) + "'\n";
        for (const CLI::Option* option : verb->get_options())
            for (const std::string& name : option->get_lnames())
                out += "complete -c bulkheadctl -n '__fish_seen_subcommand_from " +
                       verb->get_name() + "' -l " + name + " -d '" +
                       escaped(option->get_description()) + "'\n";
    }
    return out;
}

}  // namespace

void addCompletion(CLI::App& app, Cli& cli) {
    auto shell = std::make_shared<std::string>();
    CLI::App* verb = app.add_subcommand("completion", "Print a completion script for a shell");
    verb->add_option("shell", *shell, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    verb->callback([&app, &cli, shell] {
        cli.chosen = [&app, shell] {
            const std::string script = *shell == "bash"  ? bash(app)
                                       : *shell == "zsh" ? zsh(app)
                                                         : fish(app);
            std::printf("%s", script.c_str());
            return static_cast<int>(kOk);
        };
    });
}

}  // namespace bulkhead::cli
