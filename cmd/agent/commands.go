package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/strata-build/strata/agent"
	"github.com/strata-build/strata/agent/result"
)

// execute runs the command line and returns the exit code.
func execute(args []string, streams agent.Streams) result.ExitCode {
	code := result.ExitSucceeded
	root := &cobra.Command{
		Use:           "agent",
		Short:         "Build an image from a Containerfile and push it, with retries and a result",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       agent.Version(),
	}
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.SetArgs(args)
	root.AddCommand(buildCommand(streams, &code), pruneCommand(streams, &code), doctorCommand(streams, &code), explainCommand(), versionCommand(), docsCommand())
	switch err := root.Execute(); {
	case errors.Is(err, errRefused):
	case err != nil:
		fmt.Fprintf(streams.Err, "Error: %v\n", err)
		return result.ExitSettings
	}
	return code
}

// errRefused is the error of flags about which everything has been said.
var errRefused = errors.New("flags refused")

func buildCommand(streams agent.Streams, code *result.ExitCode) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "build [flags] [CONTEXT]",
		Short: "Build an image, and push it or write it to a file",
		Long: `Build an image from a Containerfile in CONTEXT (default: the current directory).

Pull, build, push and verify are tried again on their own: a push that fails does
not repeat the build, and a build that is tried again resumes at the step that
failed. Each flag can be given in the environment as ` + "STRATA_FLAG" + `, with
underscores for dashes; flags win. A list flag takes one value from each line.`,
		Example: `  agent build --tag localhost/hello .
  agent build --tag registry.example/team/os:1 --push --push-authfile auth.json .
  agent build --output oci:hello --result - .`,
		Args: cobra.ArbitraryArgs,
	}
	settings := agent.NewSettings(cmd.Flags())
	cmd.Run = func(_ *cobra.Command, args []string) {
		if agent.Sweeping() {
			_ = settings.ReadEnvironment(os.Environ())
			*code = agent.Sweep(settings, streams)
			return
		}
		err := settings.Read(args, os.Environ())
		if err != nil {
			*code = agent.Refuse(settings, err, streams)
			return
		}
		*code = agent.Run(settings, streams)
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		settings.FindResult(os.Args) // flags behind the bad one were not read
		_ = settings.ReadEnvironment(os.Environ())
		*code = agent.Refuse(settings, fmt.Errorf("%w; see `agent build --help`", err), streams)
		return errRefused
	})
	return cmd
}

func doctorCommand(streams agent.Streams, code *result.ExitCode) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Say whether a build would work here, and what to change where it would not",
		Long: `Look at the sandbox as a build does before it begins: the user namespace, the store,
temporary files, mounts, the isolation and limits of RUN steps, and the configuration.
Each check says what was found, and what is to be changed: a line of the pod's
specification, a sysctl, a line of /etc/subuid. Nothing is sent to any registry.

The flags and variables are those of ` + "`agent build`" + `. The exit code is 0 where a build would
work, and 3 where it would not.`,
		Example: `  agent doctor
  agent doctor --json --storage-root /var/tmp/store`,
		Args: cobra.NoArgs,
	}
	// Variables of a build that has other settings are not to be refused.
	all := pflag.NewFlagSet("build", pflag.ContinueOnError)
	settings := agent.NewSettings(all)
	for _, name := range agent.DoctorFlags {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	asJSON := cmd.Flags().Bool("json", false, "write JSON instead of a table")
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := settings.ReadEnvironment(os.Environ()); err != nil {
			return err
		}
		*code = agent.Doctor(settings, *asJSON, streams)
		return nil
	}
	return cmd
}

func pruneCommand(streams agent.Streams, code *result.ExitCode) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove from the store what earlier builds left and nothing uses",
		Long: `Remove from the store the images without a name that nothing uses: those that a
later build replaced, and the results of steps of images that are gone. Images with
a name stay, and so do the steps that these were built from, so that they are not run
again. Layers of no image, and what is damaged, go too. The IDs of the images that
were removed are printed.`,
		Example: `  agent prune
  agent prune --all --storage-root /var/lib/builds`,
		Args: cobra.NoArgs,
	}
	pruning := agent.NewPruning(cmd.Flags())
	cmd.Run = func(*cobra.Command, []string) { *code = pruning.Run(os.Environ(), streams) }
	return cmd
}

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [REASON]",
		Short: "Print what a reason of a result means and what to do about it",
		Args:  cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, e := range result.Entries() {
				names = append(names, string(e.Reason))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				for _, e := range result.Entries() {
					fmt.Fprintf(cmd.OutOrStdout(), "%-26s %s\n", e.Reason, e.Sentence)
				}
				return nil
			}
			for _, e := range result.Entries() {
				if strings.EqualFold(string(e.Reason), args[0]) {
					fmt.Fprint(cmd.OutOrStdout(), agent.Explain(e))
					return nil
				}
			}
			return fmt.Errorf("%q is not a reason: `agent explain` lists them", args[0])
		},
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), agent.Version())
			return err
		},
	}
}

// docsCommand prints a page of docs/ that is generated; the Makefile keeps the
// files current.
func docsCommand() *cobra.Command {
	pages := map[string]func() string{"contract": agent.Contract, "troubleshooting": agent.Troubleshooting}
	return &cobra.Command{
		Use:       "docs contract|troubleshooting",
		Short:     "Print a page of the documentation that is generated from the code",
		Hidden:    true,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"contract", "troubleshooting"},
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), pages[args[0]]())
			return err
		},
	}
}
