// Command kubelet-admission asks the kubelet's own topology manager, CPU manager (static policy) and device manager
// whether they admit Pods. Each line of standard input is a node and a Pod, each line of standard output its answer.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	_ "unsafe" // for go:linkname

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/lib/model"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// question is a node, its kubelet's configuration and state, and a Pod.
type question struct {
	CPUs            []cpu               // of the machine
	Distances       map[int][]uint64    // NUMA node to its distance from each
	Static          bool                // the CPU manager's policy; otherwise none
	Options         map[string]string   // of the static policy
	Reserved        string              // the kubelet's CPUs
	Held            map[string]string   // UID of a Pod to its CPUs
	Topology        string              // the topology manager's policy
	Scope           string              // what it aligns
	TopologyOptions map[string]string   // of its policy
	Devices         map[string][]device // by resource
	Pod             v1.Pod
}

type cpu struct{ ID, Core, Socket, Node, Cache int }

type device struct {
	Node int
	Held bool
}

type answer struct {
	Admit   bool              `json:"admit"`
	Reason  string            `json:"reason,omitempty"`
	Message string            `json:"message,omitempty"`
	CPUs    map[string]string `json:"cpus,omitempty"` // container to its CPUs
}

//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(klog.Logger, string, []cadvisorapi.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kubelet-admission: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	// Options of the quality alpha are asked too.
	if err := utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true"); err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for at := 0; ; at++ {
		var asked question
		if err := in.Decode(&asked); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		told, err := admit(&asked, filepath.Join(folder, strconv.Itoa(at)))
		if err != nil {
			return fmt.Errorf("question %d: %w", at, err)
		}
		if err := out.Encode(told); err != nil {
			return err
		}
	}
}

func admit(asked *question, folder string) (*answer, error) {
	logger := logr.Discard()
	ctx := klog.NewContext(context.Background(), logger)
	machine := machine(asked)
	manager, err := topologymanager.NewManager(logger, machine.Topology, asked.Topology, asked.Scope, asked.TopologyOptions)
	if err != nil {
		return nil, err
	}
	if len(asked.Devices) > 0 {
		devices, err := devices(ctx, asked, folder, machine, manager)
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(folder)
		defer devices.Stop(logger)
		manager.AddHintProvider(logger, devices)
	}
	kept := state.NewMemoryState(logger)
	if asked.Static {
		provider, err := cpus(asked, machine, manager, kept)
		if err != nil {
			return nil, err
		}
		manager.AddHintProvider(logger, provider)
	}
	result := manager.Admit(ctx, &lifecycle.PodAdmitAttributes{Pod: &asked.Pod, Operation: lifecycle.AddOperation})
	told := &answer{Admit: result.Admit, Reason: result.Reason, Message: result.Message, CPUs: map[string]string{}}
	for name, cpus := range kept.GetCPUAssignments()[string(asked.Pod.UID)] {
		told.CPUs[name] = cpus.String()
	}
	return told, nil
}

func machine(asked *question) *cadvisorapi.MachineInfo {
	sockets, nodes := sets.New[int](), map[int]map[[2]int]*cadvisorapi.Core{}
	for _, cpu := range asked.CPUs {
		sockets.Insert(cpu.Socket)
		if nodes[cpu.Node] == nil {
			nodes[cpu.Node] = map[[2]int]*cadvisorapi.Core{}
		}
		key := [2]int{cpu.Socket, cpu.Core}
		core := nodes[cpu.Node][key]
		if core == nil {
			caches := []cadvisorapi.Cache{{Id: cpu.Cache, Level: 3}}
			core = &cadvisorapi.Core{Id: cpu.Core, SocketID: cpu.Socket, UncoreCaches: caches}
			nodes[cpu.Node][key] = core
		}
		core.Threads = append(core.Threads, cpu.ID)
	}
	info := &cadvisorapi.MachineInfo{NumCores: len(asked.CPUs), NumSockets: sockets.Len()}
	for _, number := range slices.Sorted(maps.Keys(nodes)) {
		node := cadvisorapi.Node{Id: number, Distances: asked.Distances[number]}
		for _, core := range nodes[number] {
			node.Cores = append(node.Cores, *core)
		}
		info.Topology = append(info.Topology, node)
	}
	return info
}

// cpuManager is the static policy with a state in memory; cpumanager's own manager adds files and a loop.
type cpuManager struct {
	cpumanager.Policy
	state state.State
}

func cpus(asked *question, machine *cadvisorapi.MachineInfo, store topologymanager.Store, kept state.State) (*cpuManager, error) {
	logger := logr.Discard()
	topology, err := topology.Discover(logger, machine)
	if err != nil {
		return nil, err
	}
	reserved, err := cpuset.Parse(asked.Reserved)
	if err != nil {
		return nil, err
	}
	policy, err := cpumanager.NewStaticPolicy(logger, topology, reserved.Size(), reserved, store, asked.Options)
	if err != nil {
		return nil, err
	}
	free := topology.CPUDetails.CPUs()
	if strict, _ := strconv.ParseBool(asked.Options[cpumanager.StrictCPUReservationOption]); strict {
		free = free.Difference(reserved)
	}
	for uid, text := range asked.Held {
		held, err := cpuset.Parse(text)
		if err != nil {
			return nil, err
		}
		kept.SetCPUSet(uid, "main", held)
		free = free.Difference(held)
	}
	kept.SetDefaultCPUSet(free)
	return &cpuManager{policy, kept}, policy.Start(logger, kept)
}

func (m *cpuManager) GetTopologyHints(logger klog.Logger, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return m.Policy.GetTopologyHints(logger, m.state, pod, container, operation)
}

func (m *cpuManager) GetPodTopologyHints(logger klog.Logger, pod *v1.Pod, operation lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return m.Policy.GetPodTopologyHints(logger, m.state, pod, operation)
}

func (m *cpuManager) Allocate(ctx context.Context, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation) error {
	return m.Policy.Allocate(klog.FromContext(ctx), m.state, pod, container, operation)
}

func (m *cpuManager) AllocatePod(logger klog.Logger, pod *v1.Pod, operation lifecycle.Operation) error {
	return m.Policy.AllocatePod(logger, m.state, pod, operation)
}

// plugin is a device plugin that grants whatever it is asked.
type plugin struct {
	pluginapi.DevicePluginClient
	resource string
}

func (p plugin) API() pluginapi.DevicePluginClient { return p }
func (p plugin) Resource() string                  { return p.resource }
func (p plugin) SocketPath() string                { return p.resource }

func (p plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty, ...grpc.CallOption) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p plugin) Allocate(context.Context, *pluginapi.AllocateRequest, ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
}

type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

func devices(ctx context.Context, asked *question, folder string, machine *cadvisorapi.MachineInfo, store topologymanager.Store) (*devicemanager.ManagerImpl, error) {
	logger := logr.Discard()
	manager, err := newManagerImpl(logger, filepath.Join(folder, "socket"), machine.Topology, store)
	if err != nil {
		return nil, err
	}
	pods := func() []*v1.Pod { return []*v1.Pod{&asked.Pod} }
	if err := manager.Start(logger, pods, ready{}, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return nil, err
	}
	for resource, list := range asked.Devices {
		if err := manager.PluginConnected(ctx, resource, plugin{resource: resource}); err != nil {
			return nil, err
		}
		told := &pluginapi.ListAndWatchResponse{}
		for at, one := range list {
			health := pluginapi.Healthy
			if one.Held {
				health = pluginapi.Unhealthy // it counts as there, and is not free
			}
			at := &pluginapi.Device{ID: strconv.Itoa(at), Health: health}
			at.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(one.Node)}}}
			told.Devices = append(told.Devices, at)
		}
		manager.PluginListAndWatchReceiver(logger, resource, told)
	}
	return manager, nil
}
