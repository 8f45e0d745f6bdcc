// Command kube is Kubernetes in one binary, for tests: etcd, the API server,
// the controller manager, the scheduler, the kubelet and kubectl, from their
// own Go modules. It runs the component that its first argument or, as a link,
// its name says: `kube kubectl get nodes` is `kubectl get nodes`.
//
// With KUBE_ENDS_WITH_PARENT in the environment, a component ends when the
// process that started it is gone, so that a test that is killed leaves none.
//
// The versions are those of go.mod. It is a module of its own because
// k8s.io/kubernetes pins some hundred others.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// The formats and metrics that the components' own main packages register.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// components maps the name of each to what its main function does.
var components = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(manager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 runKubectl,
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints it and exits as kubectl does
	}
	return 0
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, isLink := components[name]; !isLink && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	run, known := components[name]
	if !known {
		fmt.Fprintf(os.Stderr, "kube: %q is no component: use etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet or kubectl\n", name)
		os.Exit(2)
	}
	if os.Getenv("KUBE_ENDS_WITH_PARENT") != "" {
		go endWith(os.Getppid())
	}
	os.Exit(run())
}

// endWith exits once this process is no longer the child of parent. The kernel's
// parent-death signal would come when the thread that started us ends, which Go
// does not promise to keep.
func endWith(parent int) {
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
	os.Exit(1)
}
